{{/* The release's name for its objects: one install per release. Room is left for the suffixes of Lease, Secret and Service. */}}
{{- define "durable.name" -}}
{{- if hasPrefix .Release.Name .Chart.Name }}{{ .Chart.Name }}
{{- else if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "durable.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "durable.name" .) }}
{{- end }}

{{/* An image by its name in .Values.images; there is no default to fall back on. */}}
{{- define "durable.image" -}}
{{- $name := index . 1 }}
{{- $missing := printf "images.%s is missing: no image is published, so name yours with --set images.%s=REGISTRY/%s:TAG" $name $name $name }}
{{- required $missing (index (index . 0).Values.images $name) }}
{{- end }}

{{- define "durable.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "durable.labels" -}}
{{ include "durable.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}

{{/* What the operator may do in a namespace that it looks after. */}}
{{- define "durable.rules" -}}
- apiGroups: [durablesessions.dev]
  resources: [durablesessions, durablespaces, checkpointstores]
  verbs: [get, list, watch]
- apiGroups: [durablesessions.dev]
  resources: [durablesessions]
  verbs: [update, delete]   # its own finalizer; ttlSecondsAfterFinished
- apiGroups: [durablesessions.dev]
  resources: [durablespaces]
  verbs: [create, delete]   # a session's own Space
- apiGroups: [durablesessions.dev]
  resources: [durablesessions/status, durablespaces/status, checkpointstores/status]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]           # tokens and certificates of Spaces; none is ever read
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, create, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create, list]     # why a claim is not bound
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create, update]
{{- end }}
