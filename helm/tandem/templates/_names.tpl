{{/* Names and labels. "tandem.name", "tandem.release" and "tandem.releaseSelector" take the root context, the others a pair's (see _pairs.tpl). */}}

{{- define "tandem.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "tandem.release" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains (include "tandem.name" .) .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "tandem.name" .) -}}
{{- end -}}
{{- end -}}

{{/*
The name of a pair's objects, from the release and the pair alone: its place in the list plays no part. At most 40 characters:
a StatefulSet's name must leave room for the hash of its revisions (52), a CronJob's for a time (52), and they have suffixes
such as -retention. What does not fit, or is no DNS label, ends in a hash of the whole, so that two never meet.
*/}}
{{- define "tandem.fullname" -}}
{{- $release := include "tandem.release" .root -}}
{{- $whole := printf "%s-%s" $release .name -}}
{{- $plain := regexReplaceAll "[^a-z0-9-]+" (lower $whole) "-" | trimAll "-" -}}
{{- $plain = ternary $plain (printf "t-%s" $plain) (regexMatch "^[a-z]" $plain) -}}
{{- if and (eq $plain $whole) (le (len $whole) 40) -}}
{{- $whole -}}
{{- else -}}
{{- printf "%s-%s" ($plain | trunc 31 | trimSuffix "-") (sha256sum $whole | trunc 8) -}}
{{- end -}}
{{- end -}}

{{/*
The name of what the Spark operator schedules. Each run is called that and a time in nanoseconds, 20 characters, and the name of
a run becomes a label, which has 63 at most.
*/}}
{{- define "tandem.scheduledName" -}}
{{- $room := sub 42 (len .job) | int -}}
{{- if le (len .fullname) $room -}}
{{- printf "%s-%s" .fullname .job -}}
{{- else -}}
{{- printf "%s-%s-%s" (.fullname | trunc (sub $room 9 | int) | trimSuffix "-") (sha256sum .fullname | trunc 8) .job -}}
{{- end -}}
{{- end -}}

{{- define "tandem.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tandem.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
tandem/pair: {{ .fullname }}
{{- end -}}

{{/* What all pairs of a release have in common. */}}
{{- define "tandem.releaseSelector" -}}
app.kubernetes.io/name: {{ include "tandem.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of an object that is about all pairs, with `more`. */}}
{{- define "tandem.releaseLabels" -}}
{{- $labels := deepCopy .root.Values.commonLabels -}}
{{- include "tandem.overlay" (dict "into" $labels "over" .more) -}}
{{- $own := include "tandem.releaseSelector" .root | fromYaml -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") -}}
{{- $_ := set $own "app.kubernetes.io/version" .root.Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- include "tandem.overlay" (dict "into" $labels "over" $own) -}}
{{- toYaml $labels -}}
{{- end -}}

{{- define "tandem.labels" -}}
{{- $labels := deepCopy .root.Values.commonLabels -}}
{{- include "tandem.overlay" (dict "into" $labels "over" (include "tandem.ownLabels" . | fromYaml)) -}}
{{- toYaml $labels -}}
{{- end -}}

{{- define "tandem.ownLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{ include "tandem.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end -}}

{{/*
Labels of a pod of the kind `component`. The chart's own win: selectors rest on them. No versions: a new chart that changes
nothing of a pod is no reason to restart it.
*/}}
{{- define "tandem.podLabels" -}}
{{- $labels := deepCopy .root.Values.commonLabels -}}
{{- include "tandem.overlay" (dict "into" $labels "over" .settings.podLabels) -}}
{{- include "tandem.overlay" (dict "into" $labels "over" (include "tandem.selectorLabels" . | fromYaml)) -}}
{{- $_ := set $labels "app.kubernetes.io/component" .component -}}
{{- toYaml $labels -}}
{{- end -}}

{{- define "tandem.serviceAccountName" -}}
{{- if .settings.serviceAccount.create -}}
{{- default .fullname .settings.serviceAccount.name -}}
{{- else -}}
{{- default "default" .settings.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "tandem.image" -}}
{{- $image := .root.Values.image -}}
{{- if not $image.repository -}}
{{- fail "image.repository: required; where you have pushed the image to, such as registry.example.org/tandem" -}}
{{- end -}}
{{- $own := and (eq .component "instance") (or $image.instanceTag $image.instanceDigest) -}}
{{- $digest := ternary $image.instanceDigest $image.digest (not (not $own)) -}}
{{- if $digest -}}
{{- printf "%s@%s" $image.repository $digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default .root.Chart.AppVersion (ternary $image.instanceTag $image.tag (not (not $own)))) -}}
{{- end -}}
{{- end -}}
