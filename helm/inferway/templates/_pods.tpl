{{/* A value as a process reads it from its environment. Numbers of YAML arrive as floats. */}}
{{- define "inferway.text" -}}
{{- if kindIs "slice" . -}}
{{- join "," . -}}
{{- else if kindIs "float64" . -}}
{{- if eq (floor .) . }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end -}}

{{/* Options in camelCase as variables: (dict "service" "gateway" "config" .Values.gateway.config). */}}
{{- define "inferway.options" -}}
{{- range $name, $value := .config }}
- name: INFERWAY_{{ upper $.service }}_{{ $name | snakecase | upper }}
  value: {{ include "inferway.text" $value | quote }}
{{- end }}
{{- end -}}

{{/* Where traces go; with `begins`, for those where one may begin: (dict "root" $ "begins" true). */}}
{{- define "inferway.tracing" -}}
{{- with .root.Values.tracing }}
{{- if .otlpEndpoint }}
- name: INFERWAY_OTLP_ENDPOINT
  value: {{ .otlpEndpoint | quote }}
{{- if $.begins }}
- name: INFERWAY_TRACE_SAMPLE_RATIO
  value: {{ include "inferway.text" .sampleRatio | quote }}
{{- end }}
{{- with .headersSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: headers
{{- end }}
{{- if or .caSecret .caConfigMap }}
{{- if not (hasPrefix "https://" .otlpEndpoint) }}
{{- fail "tracing: caSecret and caConfigMap are for an otlpEndpoint with https" }}
{{- end }}
- name: OTEL_EXPORTER_OTLP_CERTIFICATE
  value: /etc/inferway/collector/ca.crt
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Of the same containers: the authority of the collector, and no key that may lie beside it. */}}
{{- define "inferway.collectorMount" -}}
{{- if include "inferway.collectorVolume" . }}
- name: collector-ca
  mountPath: /etc/inferway/collector
  readOnly: true
{{- end }}
{{- end -}}
{{- define "inferway.collectorVolume" -}}
{{- with .Values.tracing }}
{{- if and .caSecret .caConfigMap }}
{{- fail "tracing: caSecret and caConfigMap cannot both be given" }}
{{- end }}
{{- if and .otlpEndpoint (or .caSecret .caConfigMap) }}
- name: collector-ca
  {{- if .caSecret }}
  secret:
    secretName: {{ .caSecret }}
  {{- else }}
  configMap:
    name: {{ .caConfigMap }}
  {{- end }}
    items:
      - key: {{ .caKey }}
        path: ca.crt
{{- end }}
{{- end }}
{{- end -}}

{{/* Seconds from SIGTERM until a process has ended at the latest: both drain times, and as much as closing may take. */}}
{{- define "inferway.gracePeriod" -}}
{{- $delay := get .config "drainDelayS" | default .drainDelayS -}}
{{- $limit := get .config "drainLimitS" | default .drainLimitS -}}
{{- add (ceil $delay) (ceil $limit) 20 -}}
{{- end -}}
{{- define "inferway.gatewayGrace" -}}
{{ include "inferway.gracePeriod" (dict "config" .Values.gateway.config "drainDelayS" 5 "drainLimitS" 120) }}
{{- end -}}
{{- define "inferway.workerGrace" -}}
{{ include "inferway.gracePeriod" (dict "config" .config "drainDelayS" 0 "drainLimitS" 120) }}
{{- end -}}

{{/* (dict "root" $ "token" true): with a token of the API server, or without. */}}
{{- define "inferway.podSecurity" -}}
automountServiceAccountToken: {{ default false .token }}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  {{- with .root.Values.runAsUser }}
  runAsUser: {{ int . }}
  runAsGroup: {{ int . }}
  fsGroup: {{ int . }}
  {{- end }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "inferway.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* Where a pod goes: (dict "root" $ "component" "router" "pool" "" "values" .Values.router). */}}
{{- define "inferway.placement" -}}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.spreadOver }}
topologySpreadConstraints:
  {{- range . }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "inferway.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* (dict "probes" .Values.router.probes "port" "ops" "started" "/health" "ready" "/health/ready"). None waits a fixed time. */}}
{{- define "inferway.probes" -}}
{{- with .probes.startup }}
startupProbe:
  httpGet:
    path: {{ $.started }}
    port: {{ $.port }}
  {{- toYaml . | nindent 2 }}
{{- end }}
livenessProbe:
  httpGet:
    path: /health
    port: {{ .port }}
    {{- with .scheme }}
    scheme: {{ . }}
    {{- end }}
  {{- toYaml .probes.liveness | nindent 2 }}
readinessProbe:
  httpGet:
    path: {{ .ready }}
    port: {{ .port }}
    {{- with .scheme }}
    scheme: {{ . }}
    {{- end }}
  {{- toYaml .probes.readiness | nindent 2 }}
{{- end -}}
