{{/* The Spark jobs. A job's context is the pair's with component (retention, verify, drill or restore) and job (its settings). */}}

{{- define "tandem.job" -}}
{{- $job := deepCopy .settings.jobs -}}
{{- include "tandem.overlay" (dict "into" $job "over" (get .settings .component)) -}}
{{- toYaml $job -}}
{{- end -}}

{{/*
Puts the job's settings into its context, and its own files and variables over those of the pair: what a job needs alone, no
instance mounts, and no instance is restarted for.
*/}}
{{- define "tandem.setJob" -}}
{{- $_ := set . "job" (include "tandem.job" . | fromYaml) -}}
{{- $settings := deepCopy .settings -}}
{{- include "tandem.overlay" (dict "into" $settings "over" (pick .job "files" "secretEnv")) -}}
{{- $_ := set . "settings" $settings -}}
{{- end -}}

{{/* H as the minute: one that follows from the pair's name. */}}
{{- define "tandem.schedule" -}}
{{- regexReplaceAll "^H " .job.schedule (printf "%d " (mod (adler32sum .fullname | int64) 60)) -}}
{{- end -}}

{{/* Arguments of `tandem`, as a YAML list. */}}
{{- define "tandem.arguments" -}}
{{- $words := list .component -}}
{{- if eq .component "retention" -}}
{{- if .job.execute }}{{ $words = append $words "--execute" }}{{ end -}}
{{- with .job.horizon }}{{ $words = concat $words (list "--horizon" .) }}{{ end -}}
{{- else if eq .component "verify" -}}
{{- if .job.againstTopic }}{{ $words = append $words "--against-topic" }}
{{- else if .job.sample }}{{ $words = concat $words (list "--sample" .job.sample) }}{{ end -}}
{{- else if eq .component "drill" -}}
{{- with .job.topics }}{{ $words = concat $words (list "--topics" (join "," .)) }}{{ end -}}
{{- else if eq .component "restore" -}}
{{- $words = concat $words .job.args -}}
{{- end -}}
{{- $master := ternary "k8s://https://kubernetes.default.svc" (printf "local[%v,4]" .job.cores) (eq .settings.spark.mode "operator") -}}
{{- toYaml (concat $words (list "--master" $master) .job.extraArgs) -}}
{{- end -}}

{{/* The spec of a Job that runs Spark in its own pod. */}}
{{- define "tandem.jobSpec" -}}
backoffLimit: {{ .job.backoffLimit }}
activeDeadlineSeconds: {{ .job.activeDeadlineSeconds }}
{{- /* A restore with an id stays: an upgrade would make it anew once it is gone. */}}
{{- if not (and (eq .component "restore") .job.id) }}
ttlSecondsAfterFinished: {{ .job.ttlSecondsAfterFinished }}
{{- end }}
# 2: usage or configuration, 3: a mismatch, 5: refused for safety. Another run would end the same way.
podFailurePolicy:
  rules:
    - action: FailJob
      onExitCodes:
        containerName: {{ .component }}
        operator: In
        values: [2, 3, 5]
    # A drained node is no failure of the job's.
    - action: Ignore
      onPodConditions:
        - type: DisruptionTarget
          status: "True"
template:
  metadata:
    {{- include "tandem.jobPodMetadata" . | nindent 4 }}
  spec:
    restartPolicy: Never
    {{- include "tandem.podBasics" . | nindent 4 }}
    {{- with .settings.affinity }}
    affinity:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    containers:
      - name: {{ .component }}
        args:
          {{- include "tandem.arguments" . | nindent 10 }}
        {{- include "tandem.containerBasics" . | nindent 8 }}
        resources:
          {{- toYaml .job.resources | nindent 10 }}
    volumes:
      {{- include "tandem.volumes" (set . "tmp" .job.tmp) | nindent 6 }}
{{- end -}}

{{/* The name of a restore, at most 63 characters; `spec` is what it does: something else, in an upgrade, is another one. */}}
{{- define "tandem.restoreName" -}}
{{- $which := .root.Release.Revision | toString -}}
{{- if .job.id -}}
{{- $which = printf "%s-%s" .job.id (sha256sum .spec | trunc 5) -}}
{{- end -}}
{{- $name := printf "%s-restore-%s" .fullname $which -}}
{{- if gt (len $name) 63 -}}
{{- $name = printf "%s-%s" ($name | trunc 54 | trimSuffix "-") (sha256sum $name | trunc 8) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* What the pods of all jobs have, whoever makes them. */}}
{{- define "tandem.jobPodMetadata" -}}
labels:
  {{- include "tandem.podLabels" . | nindent 2 }}
{{- with .settings.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
