{{- define "covault.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "covault.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "covault.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "covault.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "covault.selector" -}}
app.kubernetes.io/name: {{ include "covault.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "covault.labels" -}}
{{ include "covault.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: covault
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "covault.image" -}}
{{- $repository := required "image.repository: name the image that deploy/image made" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- $repository }}@{{ .Values.image.digest -}}
{{- else -}}
{{- $repository }}:{{ required "image.tag: name a tag, or a digest in image.digest" .Values.image.tag -}}
{{- end -}}
{{- end -}}

{{- define "covault.container" -}}
image: {{ include "covault.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end -}}

{{- define "covault.dns" -}}
# Host names.
- ports:
    - { protocol: UDP, port: 53 }
    - { protocol: TCP, port: 53 }
  to:
    - namespaceSelector: { matchLabels: { kubernetes.io/metadata.name: kube-system } }
{{- end -}}
