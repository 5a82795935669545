"""llama.cpp's C interface, as the xllamacpp wheel of one version exports it.

The structs below are those of llama.cpp b11549. Their layout changes between builds, and a wrong one writes over
foreign memory; so `Library` compares the installed version before it calls anything, and the default values, field
by field, before it passes anything in.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import logging
import os
import sys
from ctypes import c_bool, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any

from inferway import logs

VERSION = "2026.10.11549"

_log = logging.getLogger(__name__)

_LOG_WARNING, _LOG_ERROR = 3, 4


class _ModelParams(ctypes.Structure):
    _fields_ = [
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int32),
        ("load_mode", c_int32),
        ("lazy_mode", c_int32),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    ]


class _ContextParams(ctypes.Structure):
    _fields_ = [
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int32),
        ("rope_scaling_type", c_int32),
        ("pooling_type", c_int32),
        ("attention_type", c_int32),
        ("flash_attn_type", c_int32),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float),
        ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int32),
        ("type_v", c_int32),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        ("moe_cache_size", c_int64),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    ]


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", c_int32),
        ("token", c_void_p),
        ("embd", c_void_p),
        ("pos", c_void_p),
        ("n_seq_id", c_void_p),
        ("seq_id", c_void_p),
        ("logits", c_void_p),
    ]


# Values that llama_*_default_params give; a field that is not named is zero, null or false.
_MODEL_DEFAULTS = {"n_gpu_layers": -1, "split_mode": 1, "load_mode": -1, "lazy_mode": 1, "use_extra_bufts": True}
_CONTEXT_DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_outputs_max_per_seq": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
}

_LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)

# name: (result, *arguments)
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "llama_log_set": (None, _LogCallback, c_void_p),
    "llama_backend_init": (None,),
    "llama_model_default_params": (_ModelParams,),
    "llama_context_default_params": (_ContextParams,),
    "llama_model_load_from_file": (c_void_p, c_char_p, _ModelParams),
    "llama_model_free": (None, c_void_p),
    "llama_model_get_vocab": (c_void_p, c_void_p),
    "llama_model_n_ctx_train": (c_int32, c_void_p),
    "llama_model_is_recurrent": (c_bool, c_void_p),
    "llama_model_is_hybrid": (c_bool, c_void_p),
    "llama_model_is_diffusion": (c_bool, c_void_p),
    "llama_model_has_encoder": (c_bool, c_void_p),
    "llama_vocab_n_tokens": (c_int32, c_void_p),
    "llama_vocab_is_eog": (c_bool, c_void_p, c_int32),
    "llama_vocab_get_attr": (ctypes.c_int, c_void_p, c_int32),
    "llama_vocab_eos": (c_int32, c_void_p),
    "llama_vocab_eot": (c_int32, c_void_p),
    "llama_tokenize": (c_int32, c_void_p, c_char_p, c_int32, c_void_p, c_int32, c_bool, c_bool),
    "llama_init_from_model": (c_void_p, c_void_p, _ContextParams),
    "llama_free": (None, c_void_p),
    "llama_n_ctx_seq": (c_uint32, c_void_p),
    "llama_get_memory": (c_void_p, c_void_p),
    "llama_memory_seq_rm": (c_bool, c_void_p, c_int32, c_int32, c_int32),
    "llama_memory_seq_cp": (None, c_void_p, c_int32, c_int32, c_int32, c_int32),
    "llama_decode": (c_int32, c_void_p, Batch),
    "llama_get_logits_ith": (c_void_p, c_void_p, c_int32),
}


class Library:
    """The functions, checked and ready to be called as attributes. Raises OSError when they cannot be used."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("xllamacpp")
        if spec is None or not spec.submodule_search_locations:
            raise OSError(f"the llamacpp engine needs the package xllamacpp=={VERSION}")
        installed = importlib.metadata.version("xllamacpp")
        if installed != VERSION:
            raise OSError(f"the llamacpp engine needs xllamacpp=={VERSION}; {installed} is installed")
        if sys.platform == "win32":
            raise OSError("the llamacpp engine does not run on Windows: xllamacpp exports no llama.cpp symbols there")
        # Threads of a step wait for each other some 500 times. Spinning without end starves them as soon as other
        # processes want the cores, sleeping at once costs three quarters of the speed on idle ones; so they spin
        # some 50 microseconds and then sleep. Both are read once, when libgomp is loaded.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
        # The shared object, not the module: importing that takes longer and gives nothing that is used here.
        self._dll = ctypes.CDLL(str(Path(spec.submodule_search_locations[0], "xllamacpp.abi3.so")))
        for name, (result, *arguments) in _PROTOTYPES.items():
            function = getattr(self._dll, name, None)
            if function is None:
                raise OSError(f"xllamacpp {installed} has no symbol {name}")
            function.restype, function.argtypes = result, arguments
        self.llama_log_set(_log_callback, None)
        self.llama_backend_init()
        _check_layout(self.llama_model_default_params(), _MODEL_DEFAULTS)
        _check_layout(self.llama_context_default_params(), _CONTEXT_DEFAULTS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dll, name)


def _check_layout(params: ctypes.Structure, defaults: dict[str, Any]) -> None:
    for name, *_ in params._fields_:
        value, expected = getattr(params, name), defaults.get(name, 0)
        if (value or 0) != expected:
            raise OSError(f"{type(params).__name__}.{name} is {value!r}, not {expected!r}: another build of llama.cpp")


def _forward_log(level: int, text: bytes, _: object) -> None:
    if level in (_LOG_WARNING, _LOG_ERROR):
        severity = logging.ERROR if level == _LOG_ERROR else logging.DEBUG
        logs.event(_log, "llama_cpp", level=severity, detail=text.decode(errors="replace").rstrip())


# One for the process, as llama.cpp's own setting is: whoever logs last must still find it.
_log_callback = _LogCallback(_forward_log)
