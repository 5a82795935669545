{{/* Of each: (dict "root" $ "pool" POOL). */}}

{{- define "inferway.workerEnv" -}}
# The pod's name: metrics and scalers tell pools apart by it.
- name: INFERWAY_WORKER_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: INFERWAY_WORKER_ENGINE
  value: {{ .pool.engine }}
- name: INFERWAY_WORKER_LISTEN
  value: "{{ .root.Values.listenHost }}:50051"
- name: INFERWAY_WORKER_OPS_LISTEN
  value: "{{ .root.Values.listenHost }}:9101"
- name: INFERWAY_INTERNAL_TOKEN_FILE
  value: /etc/inferway/internal/token
{{- with .pool.model.path }}
- name: INFERWAY_WORKER_MODEL_PATH
  value: {{ printf "%s/%s" $.pool.model.mountPath . }}
{{- end }}
{{- with include "inferway.engineFlags" .pool }}
- name: INFERWAY_WORKER_ENGINE_FLAGS
  value: {{ . | quote }}
{{- end }}
{{- with .pool.scripts }}
- name: INFERWAY_WORKER_SCRIPTS
  value: /etc/inferway/scripts/scripts.yaml
{{- end }}
# Caches go where can be written.
- name: HOME
  value: /home/inferway
{{- include "inferway.tracing" (dict "root" .root "begins" false) }}
{{- include "inferway.options" (dict "service" "worker" "config" .pool.config) }}
{{- with .pool.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Words, quoted as for a shell. */}}
{{- define "inferway.engineFlags" -}}
{{- $words := .engineFlags -}}
{{- if .lora -}}
{{- $words = concat $words (list "--enable-lora" "--lora-paths") -}}
{{- range .lora -}}
{{- $words = append $words (printf "%s=%s" .name .path) -}}
{{- end -}}
{{- end -}}
{{- $quoted := list -}}
{{- range $words -}}
{{- $quoted = append $quoted (printf "'%s'" (replace "'" "'\\''" .)) -}}
{{- end -}}
{{- join " " $quoted -}}
{{- end -}}

{{- define "inferway.workerResources" -}}
{{- $resources := deepCopy .resources -}}
{{- if gt (int .gpu.count) 0 -}}
{{/* Of what is counted, requests are limits. */}}
{{- range list "requests" "limits" -}}
{{- $_ := set $resources . (merge (dict $.gpu.resource (int $.gpu.count)) (default dict (get $resources .))) -}}
{{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- define "inferway.hasModelVolume" -}}
{{- if or .model.existingClaim .model.hostPath }}yes{{ end -}}
{{- end -}}

{{- define "inferway.workerMounts" -}}
- name: internal
  mountPath: /etc/inferway/internal
  readOnly: true
{{- with .pool.scripts }}
- name: scripts
  mountPath: /etc/inferway/scripts
  readOnly: true
{{- end }}
{{- if include "inferway.hasModelVolume" .pool }}
- name: models
  mountPath: {{ .pool.model.mountPath }}
  readOnly: true
{{- end }}
- name: home
  mountPath: /home/inferway
- name: tmp
  mountPath: /tmp
{{- if .pool.shmSize }}
- name: shm
  mountPath: /dev/shm
{{- end }}
{{- include "inferway.collectorMount" .root }}
{{- with .pool.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "inferway.workerVolumes" -}}
- name: internal
  secret:
    secretName: {{ include "inferway.internalSecret" .root }}
{{- with .pool.scripts }}
- name: scripts
  configMap:
    name: {{ include "inferway.poolName" $ }}
{{- end }}
{{- if .pool.model.existingClaim }}
- name: models
  persistentVolumeClaim:
    claimName: {{ .pool.model.existingClaim }}
{{- else if .pool.model.hostPath }}
- name: models
  hostPath:
    path: {{ .pool.model.hostPath }}
    type: Directory
{{- end }}
{{- if .pool.model.download.repository }}
- name: download
  configMap:
    name: {{ include "inferway.fullname" .root }}-download
{{- end }}
- name: home
  emptyDir: {}
- name: tmp
  emptyDir: {}
{{- with .pool.shmSize }}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ . }}
{{- end }}
{{- include "inferway.collectorVolume" .root }}
{{- with .pool.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Fills the claim, in a container of its own: a failure is told and tried again there, and kills no worker. */}}
{{- define "inferway.downloadContainer" -}}
{{- $download := .pool.model.download -}}
name: download
image: {{ include "inferway.image" (dict "root" .root "image" .pool.image) }}
imagePullPolicy: {{ .pool.image.pullPolicy }}
{{ include "inferway.containerSecurity" . }}
command: [python3, /opt/download/download_model.py]
env:
  - name: MODEL_REPOSITORY
    value: {{ $download.repository | quote }}
  - name: MODEL_REVISION
    value: {{ $download.revision | quote }}
  - name: MODEL_FOLDER
    value: {{ printf "%s/%s" .pool.model.mountPath .pool.model.path | quote }}
  - name: MODEL_ATTEMPTS
    value: {{ $download.attempts | quote }}
  - name: HOME
    value: /home/inferway
  {{- with $download.tokenSecret }}
  - name: HF_TOKEN
    valueFrom:
      secretKeyRef:
        name: {{ . }}
        key: token
  {{- end }}
  {{- with .pool.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
resources:
  requests:
    cpu: 500m
    memory: 512Mi
  limits:
    memory: 2Gi
volumeMounts:
  - name: download
    mountPath: /opt/download
    readOnly: true
  - name: models
    mountPath: {{ .pool.model.mountPath }}
  - name: home
    mountPath: /home/inferway
  - name: tmp
    mountPath: /tmp
  {{- with .pool.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
