{{- define "inferway.routers" -}}
{{- $name := printf "%s-router" (include "inferway.fullname" .) -}}
{{- $routers := list -}}
{{- range until (int .Values.router.replicas) -}}
{{- $routers = append $routers (printf "%s-%d.%s.%s.svc.%s:50050" $name . $name $.Release.Namespace $.Values.clusterDomain) -}}
{{- end -}}
{{- join "," $routers -}}
{{- end -}}

{{- define "inferway.gatewayEnv" -}}
- name: INFERWAY_GATEWAY_LISTEN
  value: "{{ .Values.listenHost }}:8000"
- name: INFERWAY_GATEWAY_ROUTERS
  value: {{ include "inferway.routers" . }}
- name: INFERWAY_INTERNAL_TOKEN_FILE
  value: /etc/inferway/internal/token
- name: INFERWAY_GATEWAY_CACHE_SECRET_FILE
  value: /etc/inferway/secrets/cache-secret
- name: INFERWAY_GATEWAY_KEY_SECRET_FILE
  value: /etc/inferway/secrets/key-secret
{{- if .Values.auth.insecure }}
- name: INFERWAY_GATEWAY_INSECURE
  value: "true"
{{- else }}
- name: INFERWAY_GATEWAY_TENANTS
  value: /etc/inferway/auth/tenants.yaml
{{- end }}
{{- if .Values.gateway.admin.enabled }}
- name: INFERWAY_GATEWAY_ADMIN_LISTEN
  value: "{{ .Values.listenHost }}:8001"
- name: INFERWAY_ADMIN_TOKEN_FILE
  value: /etc/inferway/admin/tokens
{{- end }}
{{- if include "inferway.models" . }}
- name: INFERWAY_GATEWAY_MODELS
  value: /etc/inferway/models/models.yaml
{{- end }}
{{- if .Values.redis.enabled }}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ include "inferway.redisSecret" . }}
      key: password
- name: INFERWAY_GATEWAY_REDIS
  value: redis://:$(REDIS_PASSWORD)@{{ include "inferway.fullname" . }}-redis:6379/0
{{- else if .Values.redis.externalSecret }}
- name: INFERWAY_GATEWAY_REDIS
  valueFrom:
    secretKeyRef:
      name: {{ .Values.redis.externalSecret }}
      key: url
{{- end }}
{{- if or .Values.redis.enabled .Values.redis.externalSecret }}
- name: INFERWAY_GATEWAY_GATEWAYS
  value: {{ ternary .Values.gateway.autoscaling.maxReplicas .Values.gateway.replicas .Values.gateway.autoscaling.enabled | quote }}
{{- end }}
- name: INFERWAY_GATEWAY_SPOOL_DIR
  value: /var/spool/inferway
{{- include "inferway.tracing" (dict "root" $ "begins" true) }}
{{- include "inferway.options" (dict "service" "gateway" "config" .Values.gateway.config) }}
{{- with .Values.gateway.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "inferway.gatewayMounts" -}}
- name: internal
  mountPath: /etc/inferway/internal
  readOnly: true
- name: secrets
  mountPath: /etc/inferway/secrets
  readOnly: true
{{- if not .Values.auth.insecure }}
- name: auth
  mountPath: /etc/inferway/auth
  readOnly: true
{{- end }}
{{- if .Values.gateway.admin.enabled }}
- name: admin
  mountPath: /etc/inferway/admin
  readOnly: true
{{- end }}
{{- if include "inferway.models" . }}
- name: models
  mountPath: /etc/inferway/models
  readOnly: true
{{- end }}
- name: spool
  mountPath: /var/spool/inferway
- name: tmp
  mountPath: /tmp
{{- include "inferway.collectorMount" . }}
{{- with .Values.gateway.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "inferway.gatewayVolumes" -}}
- name: internal
  secret:
    secretName: {{ include "inferway.internalSecret" . }}
- name: secrets
  secret:
    secretName: {{ include "inferway.gatewaySecret" . }}
{{- if not .Values.auth.insecure }}
# The keys' hashes only: the key for probes stays out.
- name: auth
  secret:
    secretName: {{ include "inferway.authSecret" . }}
    items:
      - key: tenants.yaml
        path: tenants.yaml
{{- end }}
{{- if .Values.gateway.admin.enabled }}
- name: admin
  secret:
    secretName: {{ include "inferway.adminSecret" . }}
{{- end }}
{{- if include "inferway.models" . }}
- name: models
  configMap:
    name: {{ include "inferway.fullname" . }}-gateway
{{- end }}
- name: spool
  emptyDir:
    sizeLimit: {{ .Values.gateway.spool.size }}
- name: tmp
  emptyDir: {}
{{- include "inferway.collectorVolume" . }}
{{- with .Values.gateway.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
