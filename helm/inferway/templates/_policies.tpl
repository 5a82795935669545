{{/* What is the same around the pods of every component: (dict "root" $ "component" "router" "pool" "" "name" NAME). */}}

{{- define "inferway.meta" -}}
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "inferway.labels" . | nindent 4 }}
{{- end -}}

{{- define "inferway.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
{{ include "inferway.meta" . }}
automountServiceAccountToken: false
{{- end -}}

{{- define "inferway.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
{{ include "inferway.meta" . }}
spec:
  maxUnavailable: {{ .maxUnavailable }}
  # A pod that is not ready serves nobody: it may always go.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "inferway.selector" . | nindent 6 }}
{{- end -}}

{{/*
As `ingress`: who may reach which port: {peers: [component, ...], port: name}; the peer "prometheus" is its namespace, and
`others` are peers as Kubernetes writes them.
*/}}
{{- define "inferway.networkPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
{{ include "inferway.meta" . }}
spec:
  podSelector:
    matchLabels:
      {{- include "inferway.selector" . | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    {{- range .ingress }}
    - ports:
        - port: {{ .port }}
      from:
        {{- range .peers }}
        {{- if eq . "prometheus" }}
        - namespaceSelector:
            matchLabels:
              {{- toYaml $.root.Values.networkPolicy.prometheusNamespace | nindent 14 }}
        {{- else }}
        - podSelector:
            matchLabels:
              {{- include "inferway.selector" (dict "root" $.root "component" .) | nindent 14 }}
        {{- end }}
        {{- end }}
        {{- with .others }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- end }}
{{- end -}}
