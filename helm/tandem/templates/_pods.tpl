{{/* What the pods of a pair have in common. Each takes the pair's context. */}}

{{/* Nobody here talks to the cluster's API, so no token is mounted; cloud identities bring their own. */}}
{{- define "tandem.podBasics" -}}
serviceAccountName: {{ include "tandem.serviceAccountName" . }}
automountServiceAccountToken: false
{{ include "tandem.placement" . }}
{{- end -}}

{{/* A Service called tandem… would put variables into every pod that look like the configuration's. */}}
{{- define "tandem.placement" -}}
enableServiceLinks: false
securityContext:
  {{- toYaml .settings.podSecurityContext | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .settings.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Image, environment, mounts: all of a container but its name, its arguments and its resources. */}}
{{- define "tandem.containerBasics" -}}
image: {{ include "tandem.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{ include "tandem.containerInside" . }}
{{- end -}}

{{- define "tandem.containerInside" -}}
env:
  - name: TANDEM_CONFIG
    value: /etc/tandem/tandem.yaml
  {{- with .stateFolder }}
  # Not in the configuration, which jobs read too: they have no such volume.
  - name: TANDEM_STATE__DIR
    value: {{ . }}/heads
  {{- end }}
  {{- range $name, $value := .settings.env }}
  - name: {{ $name }}
    value: {{ include "tandem.text" $value | quote }}
  {{- end }}
  {{- range $name, $from := .settings.secretEnv }}
  - name: {{ $name }}
    valueFrom:
      secretKeyRef:
        name: {{ $from.secret }}
        key: {{ $from.key }}
        {{- if hasKey $from "optional" }}
        optional: {{ $from.optional }}
        {{- end }}
  {{- end }}
{{- if or .settings.envFromSecrets .settings.credentials }}
envFrom:
  {{- range .settings.envFromSecrets }}
  - secretRef:
      name: {{ . }}
  {{- end }}
  {{- if .settings.credentials }}
  - secretRef:
      name: {{ .fullname }}-credentials
  {{- end }}
{{- end }}
securityContext:
  {{- toYaml .settings.securityContext | nindent 2 }}
volumeMounts:
  - name: config
    mountPath: /etc/tandem
    readOnly: true
  - name: tmp
    mountPath: /tmp
  {{- with .stateFolder }}
  - name: state
    mountPath: {{ . }}
  {{- end }}
  {{- range $name, $_ := .settings.files }}
  - name: file-{{ $name }}
    mountPath: /run/secrets/tandem/{{ $name }}
    readOnly: true
  {{- end }}
  {{- with .settings.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* `tmp` is the size of the folder for temporary files. */}}
{{- define "tandem.volumes" -}}
- name: config
  configMap:
    name: {{ .fullname }}
- name: tmp
  emptyDir:
    sizeLimit: {{ .tmp.sizeLimit }}
{{- range $name, $file := .settings.files }}
- name: file-{{ $name }}
  {{- if $file.secret }}
  secret:
    secretName: {{ $file.secret }}
    defaultMode: 288 # 0440: of the pod's group, and nobody else's
  {{- else }}
  configMap:
    name: {{ $file.configMap }}
  {{- end }}
    {{- with $file.items }}
    items:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- if hasKey $file "optional" }}
    optional: {{ $file.optional }}
    {{- end }}
{{- end }}
{{- with .settings.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Of the configuration and of the credentials that the chart itself makes: a change of either is a new revision. */}}
{{- define "tandem.checksums" -}}
checksum/config: {{ toYaml .config | sha256sum }}
{{- with .settings.credentials }}
checksum/credentials: {{ toYaml . | sha256sum }}
{{- end }}
{{- end -}}
