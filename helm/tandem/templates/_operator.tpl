{{/* The Spark jobs as the Spark operator's objects; contexts as in _jobs.tpl. */}}

{{- define "tandem.sparkServiceAccountName" -}}
{{- if .settings.spark.serviceAccount.create -}}
{{- default (printf "%s-spark" .fullname) .settings.spark.serviceAccount.name -}}
{{- else -}}
{{- default "default" .settings.spark.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The spec of a SparkApplication. Driver and executors are pod templates, which need no webhook of the operator. */}}
{{- define "tandem.sparkApplication" -}}
{{- $spark := .settings.spark -}}
type: Python
pythonVersion: "3"
mode: cluster
sparkVersion: {{ $spark.version | quote }}
image: {{ include "tandem.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {{ .name }}
  {{- end }}
{{- end }}
mainApplicationFile: local:///opt/tandem/main.py
arguments:
  {{- include "tandem.arguments" . | nindent 2 }}
{{- /* As in _jobs.tpl. */}}
{{- if not (and (eq .component "restore") .job.id) }}
timeToLiveSeconds: {{ .job.ttlSecondsAfterFinished }}
{{- end }}
restartPolicy:
  {{- if .job.backoffLimit }}
  type: OnFailure
  onFailureRetries: {{ .job.backoffLimit }}
  onFailureRetryInterval: 60
  onSubmissionFailureRetries: 3
  onSubmissionFailureRetryInterval: 60
  {{- else }}
  type: Never
  {{- end }}
{{- with $spark.conf }}
sparkConf:
  {{- range $key, $value := . }}
  {{ $key }}: {{ include "tandem.text" $value | quote }}
  {{- end }}
{{- end }}
driver:
  cores: {{ $spark.driver.cores }}
  memory: {{ $spark.driver.memory }}
  {{- with $spark.driver.coreLimit }}
  coreLimit: {{ . | quote }}
  {{- end }}
  serviceAccount: {{ include "tandem.sparkServiceAccountName" . }}
  template:
    metadata:
      {{- include "tandem.jobPodMetadata" . | nindent 6 }}
    spec:
      # It makes the executors' pods.
      automountServiceAccountToken: true
      activeDeadlineSeconds: {{ .job.activeDeadlineSeconds }}
      {{- include "tandem.placement" . | nindent 6 }}
      {{- with .settings.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: spark-kubernetes-driver
          {{- include "tandem.containerInside" . | nindent 10 }}
      volumes:
        {{- include "tandem.volumes" (set . "tmp" .job.tmp) | nindent 8 }}
executor:
  instances: {{ $spark.executor.instances }}
  cores: {{ $spark.executor.cores }}
  memory: {{ $spark.executor.memory }}
  memoryOverhead: {{ $spark.executor.memoryOverhead }}
  {{- with $spark.executor.coreLimit }}
  coreLimit: {{ . | quote }}
  {{- end }}
  serviceAccount: {{ include "tandem.serviceAccountName" . }}
  template:
    metadata:
      {{- include "tandem.jobPodMetadata" . | nindent 6 }}
    spec:
      automountServiceAccountToken: false
      {{- include "tandem.placement" . | nindent 6 }}
      {{- with .settings.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: spark-kubernetes-executor
          {{- include "tandem.containerInside" . | nindent 10 }}
      volumes:
        {{- include "tandem.volumes" (set . "tmp" .job.tmp) | nindent 8 }}
{{- end -}}
