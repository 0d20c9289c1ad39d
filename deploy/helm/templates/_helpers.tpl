{{- define "labels" -}}
app.kubernetes.io/name: linkerd-cni
app.kubernetes.io/part-of: Linkerd
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

{{- /* Refuses a value whose items are not numbers between two limits, or ranges of such numbers. */ -}}
{{- define "check" -}}
{{- range include "items" .value | fromJsonArray }}
{{- $ends := splitList "-" . }}
{{- $isNumbers := and (regexMatch "^[0-9]+(-[0-9]+)?$" .) (or $.ranges (eq (len $ends) 1)) }}
{{- if or (not $isNumbers) (lt (int64 (first $ends)) (int64 $.least)) (gt (int64 (last $ends)) (int64 $.most)) }}
{{- fail (printf "%s: %q is no %s between %d and %d" $.name . (ternary "number or range" "number" $.ranges) (int64 $.least) (int64 $.most)) }}
{{- end }}
{{- if gt (int64 (first $ends)) (int64 (last $ends)) }}
{{- fail (printf "%s: the range %s ends before it begins" $.name .) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The image of agent and plugin. */ -}}
{{- define "image" -}}
{{- $name := required "agent.image.name is required: where you pushed the image proxy-init-cni, such as registry.example/proxy-init-cni" .Values.agent.image.name }}
{{- /* A name with a digest says the version itself. */ -}}
{{- if contains "@" $name }}{{ $name }}{{ else }}{{ printf "%s:%s" $name (.Values.agent.image.version | default .Chart.AppVersion) }}{{ end }}
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
