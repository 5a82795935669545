{{/*
At most 35 characters: a Service's name has 63, and with "-worker-" and a pool's name it has them. Names of Services are
labels of DNS: no dots, which names of releases may have, and a letter first.
*/}}
{{- define "inferway.fullname" -}}
{{- $name := include "inferway.name" . -}}
{{- $full := printf "%s-%s" .Release.Name $name -}}
{{- if .Values.fullnameOverride -}}
{{- $full = .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- $full = .Release.Name -}}
{{- end -}}
{{- $full = $full | replace "." "-" | trunc 35 | trimSuffix "-" -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" $full) -}}
{{- fail (printf "fullnameOverride: names of Services must begin with a letter and have small letters, digits and hyphens: give one, %q cannot be used" $full) -}}
{{- end -}}
{{- $full -}}
{{- end -}}

{{- define "inferway.name" -}}
{{ default .Chart.Name .Values.nameOverride }}
{{- end -}}

{{/* What pods are found by: (dict "root" $ "component" "router" "pool" ""). */}}
{{- define "inferway.selector" -}}
app.kubernetes.io/name: {{ include "inferway.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .pool }}
inferway/pool: {{ . }}
{{- end }}
{{- end -}}

{{/* Of pods: nothing that changes with the chart's version, or each upgrade would restart them all. */}}
{{- define "inferway.podLabels" -}}
{{ include "inferway.selector" . }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "inferway.labels" -}}
{{ include "inferway.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | replace "+" "_" | trunc 63 | quote }}
app.kubernetes.io/part-of: inferway
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A tag may be a digest. A registry for all takes the place of the one that a repository names, if it names one. */}}
{{- define "inferway.image" -}}
{{- $repository := .image.repository -}}
{{- with (.root.Values.global | default dict).imageRegistry | default .root.Values.imageRegistry -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) (regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $repository "") -}}
{{- end -}}
{{- $tag := default .root.Chart.AppVersion .image.tag -}}
{{- $repository }}{{ ternary "@" ":" (hasPrefix "sha256:" $tag) }}{{ $tag -}}
{{- end -}}

{{- define "inferway.internalSecret" -}}
{{ default (printf "%s-internal" (include "inferway.fullname" .)) .Values.internalToken.existingSecret }}
{{- end -}}

{{- define "inferway.gatewaySecret" -}}
{{ default (printf "%s-gateway" (include "inferway.fullname" .)) .Values.gateway.secrets.existingSecret }}
{{- end -}}

{{- define "inferway.adminSecret" -}}
{{ default (printf "%s-admin" (include "inferway.fullname" .)) .Values.gateway.admin.existingSecret }}
{{- end -}}

{{- define "inferway.authSecret" -}}
{{ default (printf "%s-auth" (include "inferway.fullname" .)) .Values.auth.existingSecret }}
{{- end -}}

{{- define "inferway.redisSecret" -}}
{{ default (printf "%s-redis" (include "inferway.fullname" .)) .Values.redis.existingSecret }}
{{- end -}}

{{/* The Secret with the key api-key; empty where callers need none, or none was named. */}}
{{- define "inferway.probeSecret" -}}
{{- if not .Values.auth.insecure -}}
{{- if .Values.auth.existingSecret -}}
{{- .Values.auth.probeSecret -}}
{{- else -}}
{{- include "inferway.authSecret" . -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "inferway.frontPort" -}}
{{ .Values.front.service.port | default (ternary 443 80 (not (empty .Values.front.tls.existingSecret))) }}
{{- end -}}

{{- define "inferway.frontUrl" -}}
{{ ternary "https" "http" (not (empty .Values.front.tls.existingSecret)) }}://{{ include "inferway.fullname" . }}-front:{{ include "inferway.frontPort" . }}
{{- end -}}

{{/* For the notes: where clients outside the cluster find the front, a line for each way; nothing if there is none. */}}
{{- define "inferway.outside" -}}
{{- $get := printf "kubectl -n %s get" .Release.Namespace -}}
{{- $name := printf "%s-front" (include "inferway.fullname" .) -}}
{{- if .Values.ingress.enabled }}
{{- $encrypted := list }}
{{- range .Values.ingress.tls }}
{{- $encrypted = concat $encrypted (.hosts | default list) }}
{{- end }}
{{- range .Values.ingress.hosts }}
{{ ternary "https" "http" (or (has . $encrypted) (has (regexReplaceAll "^[^.]+" . "*") $encrypted)) }}://{{ . }}/v1
{{- else }}
/v1 at the ADDRESS of: {{ $get }} ingress {{ $name }}
{{- end }}
{{- end }}
{{- if .Values.httpRoute.enabled }}
{{- $gateway := (first .Values.httpRoute.parentRefs).name }}
{{- range .Values.httpRoute.hostnames }}
{{ . }}/v1, http or https as the Gateway {{ $gateway }} has it
{{- else }}
/v1 at the names of the Gateway {{ $gateway }}
{{- end }}
{{- end }}
{{- if eq .Values.front.service.type "LoadBalancer" }}
/v1 at the EXTERNAL-IP of: {{ $get }} service {{ $name }}
{{- else if eq .Values.front.service.type "NodePort" }}
/v1 at each node, at the second port of: {{ $get }} service {{ $name }}
{{- end }}
{{- end -}}

{{/* The pools with what they take from workerDefaults, as YAML: {pools: [...]}. Fails on what no schema can see. */}}
{{- define "inferway.pools" -}}
{{- $pools := list -}}
{{- $names := list -}}
{{- range .Values.workers -}}
{{- $pool := mergeOverwrite (deepCopy $.Values.workerDefaults) . -}}
{{- if has $pool.name $names -}}
{{- fail (printf "workers: there are two pools of the name %q" $pool.name) -}}
{{- end -}}
{{- $names = append $names $pool.name -}}
{{- $scaling := $pool.autoscaling -}}
{{- if and $scaling.hpa.enabled $scaling.keda.enabled -}}
{{- fail (printf "workers: pool %q: autoscaling.hpa and autoscaling.keda cannot both be enabled" $pool.name) -}}
{{- end -}}
{{- if and $scaling.hpa.enabled (lt (int $scaling.minReplicas) 1) -}}
{{- fail (printf "workers: pool %q: autoscaling.minReplicas of 0 needs autoscaling.keda" $pool.name) -}}
{{- end -}}
{{- if and $scaling.keda.enabled (empty $scaling.keda.models) -}}
{{- fail (printf "workers: pool %q: autoscaling.keda.models must name the models of the pool" $pool.name) -}}
{{- end -}}
{{- if and $scaling.keda.enabled (gt (len (include "inferway.poolName" (dict "root" $ "pool" $pool))) 46) -}}
{{- fail (printf "workers: pool %q: names of its pods would be cut, and the scaler could not tell them by them: shorten the name of the pool, or give a fullnameOverride" $pool.name) -}}
{{- end -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
{{- fail (printf "workers: pool %q: autoscaling.minReplicas is above maxReplicas" $pool.name) -}}
{{- end -}}
{{- if and $pool.model.existingClaim $pool.model.hostPath -}}
{{- fail (printf "workers: pool %q: model.existingClaim and model.hostPath cannot both be given" $pool.name) -}}
{{- end -}}
{{- if and $pool.model.download.repository (not $pool.model.existingClaim) -}}
{{- fail (printf "workers: pool %q: model.download needs model.existingClaim, a volume that survives restarts" $pool.name) -}}
{{- end -}}
{{- if and (or $pool.engineFlags $pool.lora) (ne $pool.engine "sglang") -}}
{{- fail (printf "workers: pool %q: engineFlags and lora are for the engine sglang" $pool.name) -}}
{{- end -}}
{{- $pools = append $pools $pool -}}
{{- end -}}
{{- toYaml (dict "pools" $pools) -}}
{{- end -}}

{{- define "inferway.poolName" -}}
{{ include "inferway.fullname" .root }}-worker-{{ .pool.name }}
{{- end -}}
