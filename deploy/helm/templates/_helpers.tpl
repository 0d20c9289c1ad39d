{{- define "labels" -}}
linkerd.io/cni-resource: "true"
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The items of a list with commas, as linkerd2-cni's values have them, as a JSON list. */ -}}
{{- define "items" -}}
{{- $items := list }}
{{- range splitList "," (toString .) }}
{{- with trim . }}{{ $items = append $items . }}{{ end }}
{{- end }}
{{- toJson $items }}
{{- end }}

{{- define "subject" -}}
subjects:
  - kind: ServiceAccount
    name: linkerd-cni
    namespace: {{ .Release.Namespace }}
{{- end }}

{{- /* A ClusterRole's binding to the agent's account, under its name. */ -}}
{{- define "binding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include "labels" .chart | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ .name }}
{{ include "subject" .chart }}
{{- end }}

{{- /* What of a resource is set, of limits or of requests. */ -}}
{{- define "resources" -}}
{{- $set := dict }}
{{- range $resource, $amounts := .resources }}
{{- with get ($amounts | default dict) $.kind }}{{ $_ := set $set $resource (toString .) }}{{ end }}
{{- end }}
{{- toJson $set }}
{{- end }}
