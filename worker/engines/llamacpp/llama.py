"""A model and its KV cache in llama.cpp's terms, typed. One thread makes and uses both; what computes frees the GIL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from ctypes import c_float, c_int32
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .abi import Batch, Library

_KV_Q8_0, _KV_F16 = 8, 1
_FLASH_ATTENTION_ON = 1
_ATTRIBUTE_NORMAL = 1 << 2


class Model:
    """A loaded model and its vocabulary. Raises OSError when the file is not one that can be served."""

    def __init__(self, library: Library, path: Path, *, vocab_only: bool = False) -> None:
        self.library = library
        params = library.llama_model_default_params()
        params.vocab_only = vocab_only
        self.handle = library.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            raise OSError(f"llama.cpp cannot load {path}")
        self._vocab = library.llama_model_get_vocab(self.handle)
        self.vocab_size: int = library.llama_vocab_n_tokens(self._vocab)
        self.trained_context: int = library.llama_model_n_ctx_train(self.handle)

    def close(self) -> None:
        self.library.llama_model_free(self.handle)

    def generates_text(self) -> bool:
        """Whether it is a plain decoder whose cache can be cut at any token; others need another scheduler."""
        library = self.library
        return not (
            library.llama_model_is_recurrent(self.handle)
            or library.llama_model_is_hybrid(self.handle)
            or library.llama_model_is_diffusion(self.handle)
            or library.llama_model_has_encoder(self.handle)
        )

    def end_tokens(self) -> list[int]:
        """Ids that end a turn, ascending. Normal tokens are none, so the vocabulary's bulk is passed over."""
        is_eog, attribute = self.library.llama_vocab_is_eog, self.library.llama_vocab_get_attr
        named = {self.library.llama_vocab_eos(self._vocab), self.library.llama_vocab_eot(self._vocab)} - {-1}
        marked = (i for i in range(self.vocab_size) if attribute(self._vocab, i) != _ATTRIBUTE_NORMAL)
        return sorted(i for i in named.union(marked) if is_eog(self._vocab, i))

    def tokenize(self, text: str) -> list[int]:
        """Ids of `text`, control tokens recognised, none added in front."""
        data = text.encode()
        ids = (c_int32 * (len(data) + 1))()
        count = self.library.llama_tokenize(self._vocab, data, len(data), ids, len(ids), False, True)
        return list(ids[:count])


class Context:
    """The KV cache of `sequences` sequences of `length` tokens each, and what computes on it.

    Each sequence has its own cells (no unified cache), and keys are kept in Q8_0: so a token's logits are the same
    to the last bit whether its sequence runs alone or with others and however its prompt was cut. With keys and
    values in F16, flash attention takes another way for large batches, and logits differ by up to 1.

    At most `max_outputs` rows of a batch can have their logits asked for; with the bundled model each costs 0.4 MB
    from its first use on.
    """

    def __init__(
        self, model: Model, *, sequences: int, length: int, max_rows: int, max_outputs: int, threads: int
    ) -> None:
        self._library = library = model.library
        params = library.llama_context_default_params()
        params.n_ctx = sequences * length
        params.n_batch = params.n_ubatch = max_rows
        params.n_seq_max = sequences
        params.n_outputs_max = self._max_outputs = max_outputs
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = _FLASH_ATTENTION_ON
        params.kv_unified = False
        params.type_v = _KV_F16
        for params.type_k in (_KV_Q8_0, _KV_F16):  # heads of a width that Q8_0 cannot hold get F16
            self._handle = library.llama_init_from_model(model.handle, params)
            if self._handle:
                break
        else:
            raise OSError(f"llama.cpp cannot make a context of {sequences} x {length} tokens; is there memory for it?")
        assert library.llama_n_ctx_seq(self._handle) >= length
        self._memory = library.llama_get_memory(self._handle)
        self._vocab_size = model.vocab_size
        self._tokens = np.zeros(max_rows, np.int32)
        self._positions = np.zeros(max_rows, np.int32)
        self._outputs = np.zeros(max_rows, np.int8)
        self._ones = np.ones(max_rows, np.int32)
        self._sequence_ids = np.arange(sequences, dtype=np.int32)
        self._sequence_pointers = np.zeros(max_rows, np.uintp)

    def close(self) -> None:
        self._library.llama_free(self._handle)

    def truncate(self, sequence: int, length: int) -> None:
        """Forget what `sequence` holds from position `length` on."""
        whole = self._library.llama_memory_seq_rm(self._memory, sequence, length if length else -1, -1)
        assert whole, "this model's cache cannot be cut"

    def copy(self, source: int, target: int, length: int) -> None:
        """Make `target` hold the first `length` tokens of `source`, instead of what it held.

        The copy is made with the next decode and moves the whole sequence: some 20 ms for 75 MB.
        """
        self.truncate(target, 0)
        self._library.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        self.truncate(target, length)

    def decode(
        self, tokens: Sequence[int], positions: Sequence[int], sequences: Sequence[int], outputs: Sequence[bool]
    ) -> bool:
        """Compute one batch of at most `max_rows` rows. False when it failed: the sequences' cells are then unknown."""
        rows = len(tokens)
        assert sum(outputs) <= self._max_outputs, "llama.cpp would end the process"
        self._tokens[:rows] = tokens
        self._positions[:rows] = positions
        self._outputs[:rows] = outputs
        pointers = self._sequence_ids.ctypes.data + self._sequence_ids.itemsize * np.asarray(sequences, np.uintp)
        self._sequence_pointers[:rows] = pointers
        batch = Batch(
            rows,
            self._tokens.ctypes.data,
            None,
            self._positions.ctypes.data,
            self._ones.ctypes.data,
            self._sequence_pointers.ctypes.data,
            self._outputs.ctypes.data,
        )
        return bool(self._library.llama_decode(self._handle, batch) == 0)

    def logits(self, row: int) -> NDArray[np.float32]:
        """Logits of a row whose output was asked for: a view that the next decode overwrites."""
        address = self._library.llama_get_logits_ith(self._handle, row)
        return np.frombuffer(memoryview((c_float * self._vocab_size).from_address(address)), np.float32)
