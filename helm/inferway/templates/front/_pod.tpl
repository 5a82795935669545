{{- define "inferway.frontListen" -}}
{{ ternary 8443 8080 (not (empty .Values.front.tls.existingSecret)) }}
{{- end -}}

{{- define "inferway.frontEnv" -}}
- name: INFERWAY_FRONT_LISTEN
  value: "{{ .Values.listenHost }}:{{ include "inferway.frontListen" . }}"
- name: INFERWAY_FRONT_GATEWAYS
  # nginx asks for a name once, so it gets the one whose address stays.
  value: {{ include "inferway.fullname" . }}-gateway{{ ternary "-pods" "" (eq .Values.front.kind "envoy") }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:8000
{{- if .Values.front.tls.existingSecret }}
- name: INFERWAY_FRONT_TLS_CERT
  value: /etc/inferway/tls/tls.crt
- name: INFERWAY_FRONT_TLS_KEY
  value: /etc/inferway/tls/tls.key
{{- end }}
{{- if eq .Values.front.kind "envoy" }}
# For draining, from within the pod only.
- name: INFERWAY_FRONT_ADMIN
  value: 127.0.0.1:9901
{{- end }}
{{- $shared := pick .Values.gateway.config "maxBodyBytes" "maxHeaderBytes" "bodyTimeoutS" "heartbeatS" "requestDeadlineS" "keepaliveS" "drainDelayS" }}
{{- include "inferway.tracing" (dict "root" $ "begins" true) }}
{{- include "inferway.options" (dict "service" "front" "config" $shared) }}
{{- include "inferway.options" (dict "service" "front" "config" .Values.front.config) }}
{{- end -}}

{{- define "inferway.frontCommand" -}}
{{- if eq .Values.front.kind "envoy" -}}
command: [envoy]
args:
  - --config-path
  - /run/front/envoy.yaml
  - --disable-hot-restart
  - --log-level
  - warning
  - --concurrency
  - {{ get .Values.front.config "processes" | default 2 | int | quote }}
lifecycle:
  preStop:
    exec:
      command: [bash, /opt/front/drain_envoy.sh, {{ include "inferway.frontDelay" . | quote }}, {{ include "inferway.frontLimit" . | quote }}]
{{- else -}}
command: [nginx]
args: [-p, /run/front/, -c, /run/front/nginx.conf, -e, stderr]
lifecycle:
  preStop:
    exec:
      # SIGQUIT closes the port and lets streams end; until then endpoints are told.
      command: [sh, -c, "sleep {{ include "inferway.frontDelay" . }}; kill -QUIT 1; sleep {{ include "inferway.frontLimit" . }}"]
{{- end -}}
{{- end -}}

{{- define "inferway.frontDelay" -}}
{{ get .Values.gateway.config "drainDelayS" | default 5 | ceil }}
{{- end -}}
{{- define "inferway.frontLimit" -}}
{{ get .Values.gateway.config "drainLimitS" | default 120 | ceil }}
{{- end -}}
