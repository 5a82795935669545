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
    command: [python, /opt/probe/stream_completion.py]
    env:
      - name: PROBE_URL
        value: {{ include "inferway.frontUrl" . }}
      - name: PROBE_MODEL
        value: {{ .Values.probe.model | quote }}
      - name: PROBE_TIMEOUT_S
        value: {{ .Values.probe.timeoutSeconds | quote }}
      {{- if .Values.front.tls.existingSecret }}
      - name: PROBE_CERTIFICATE
        value: /etc/inferway/tls/tls.crt
      {{- end }}
      {{- with include "inferway.probeSecret" . }}
      - name: PROBE_API_KEY
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
    volumeMounts:
      - name: probe
        mountPath: /opt/probe
        readOnly: true
      {{- if .Values.front.tls.existingSecret }}
      - name: tls
        mountPath: /etc/inferway/tls
        readOnly: true
      {{- end }}
volumes:
  - name: probe
    configMap:
      name: {{ include "inferway.fullname" . }}-probe
  {{- with .Values.front.tls.existingSecret }}
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
