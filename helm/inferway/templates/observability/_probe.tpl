{{/* A pod's spec that streams one completion through the front: `helm test`, and the CronJob. */}}
{{- define "inferway.probeSpec" -}}
restartPolicy: Never
serviceAccountName: {{ include "inferway.fullname" . }}-probe
{{ include "inferway.podSecurity" (dict "root" .) }}
containers:
  - name: probe
    image: {{ include "inferway.image" (dict "root" . "image" .Values.gateway.image) }}
    imagePullPolicy: {{ .Values.gateway.image.pullPolicy }}
    {{- include "inferway.containerSecurity" . | nindent 4 }}
    command: [python, -m, inferway, probe, {{ include "inferway.frontUrl" . | quote }}]
    env:
      - name: INFERWAY_PROBE_MODEL
        value: {{ .Values.probe.model | quote }}
      - name: INFERWAY_PROBE_TIMEOUT_S
        value: {{ .Values.probe.timeoutSeconds | quote }}
      {{- if .Values.front.tls.existingSecret }}
      - name: INFERWAY_PROBE_CERTIFICATE
        value: /etc/inferway/tls/tls.crt
      {{- end }}
      {{- with include "inferway.probeSecret" . }}
      - name: INFERWAY_PROBE_KEY
        valueFrom:
          secretKeyRef:
            name: {{ . }}
            key: api-key
      {{- end }}
    resources:
      requests:
        cpu: 50m
        memory: 64Mi
      limits:
        memory: 128Mi
    {{- if .Values.front.tls.existingSecret }}
    volumeMounts:
      - name: tls
        mountPath: /etc/inferway/tls
        readOnly: true
    {{- end }}
{{- with .Values.front.tls.existingSecret }}
volumes:
  - name: tls
    secret:
      secretName: {{ . }}
      # Not the private key.
      items:
        - key: tls.crt
          path: tls.crt
{{- end }}
{{- include "inferway.placement" (dict "root" . "values" .Values.probe) }}
{{- end -}}
