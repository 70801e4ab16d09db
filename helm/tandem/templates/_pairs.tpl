{{/*
A pair's context is a dict: root (the chart's own context), name, fullname, place (for messages), settings (`defaults` with the
pair's own values over them) and config (the whole configuration file). Templates get all of them by

    {{- range (include "tandem.pairs" . | fromJson).pairs }}
    {{- $pair := set . "root" $ }}
*/}}
{{- define "tandem.pairs" -}}
{{- $root := . -}}
{{- $seen := dict -}}
{{- if .Values.metrics.dashboard.enabled -}}
{{- $_ := set $seen (printf "%s-dashboard" (include "tandem.release" .)) "metrics.dashboard" -}}
{{- end -}}
{{- $accounts := dict -}}
{{- $pairs := list -}}
{{- range $number, $own := .Values.pairs -}}
{{- $place := printf "pairs[%d] (%s)" $number $own.name -}}
{{- $settings := include "tandem.own" $root | fromYaml -}}
{{- include "tandem.overlay" (dict "into" $settings "over" (deepCopy $root.Values.defaults)) -}}
{{- include "tandem.overlay" (dict "into" $settings "over" (omit (deepCopy $own) "name")) -}}
{{- $pair := dict "root" $root "name" $own.name "place" $place "settings" $settings -}}
{{- $_ := set $pair "fullname" (include "tandem.fullname" $pair) -}}
{{- if hasKey $seen $pair.fullname -}}
{{- fail (printf "%s: name: %s has it already; names must differ" $place (get $seen $pair.fullname)) -}}
{{- end -}}
{{- $_ := set $seen $pair.fullname $place -}}
{{- $made := dict -}}
{{- if $settings.serviceAccount.create -}}
{{- $_ := set $made "serviceAccount" (include "tandem.serviceAccountName" $pair) -}}
{{- end -}}
{{- if and (eq $settings.spark.mode "operator") $settings.spark.serviceAccount.create -}}
{{- $_ := set $made "spark.serviceAccount" (include "tandem.sparkServiceAccountName" $pair) -}}
{{- end -}}
{{- range $key, $account := $made -}}
{{- if hasKey $accounts $account -}}
{{- fail (printf "%s: %s.name: %s makes %s already; set %s.create: false here, or another name" $place $key (get $accounts $account) $account $key) -}}
{{- end -}}
{{- $_ := set $accounts $account $place -}}
{{- end -}}
{{- include "tandem.checked" $pair -}}
{{- $config := deepCopy $settings.config -}}
{{- $set := dict "pair" $own.name "instance" "from-hostname" "http" (dict "listen" ":8080") -}}
{{- include "tandem.overlay" (dict "into" $config "over" $set) -}}
{{- $_ := set $pair "config" $config -}}
{{- $pairs = append $pairs (omit $pair "root") -}}
{{- end -}}
{{- dict "pairs" $pairs | toJson -}}
{{- end -}}

{{/* What lies below `defaults`: part of the chart, and still to be taken out by null. */}}
{{- define "tandem.own" -}}
config:
  log: {format: json}
podSecurityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/*
Puts `over` over `into`, in place: maps key by key, everything else as a whole, null takes a key out. (The merge functions of
templates take false, 0 and "" for not given.)
*/}}
{{- define "tandem.overlay" -}}
{{- $into := .into -}}
{{- range $key, $value := .over -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $into $key -}}
{{- else if and (kindIs "map" $value) (kindIs "map" (get $into $key)) -}}
{{- include "tandem.overlay" (dict "into" (get $into $key) "over" $value) -}}
{{- else -}}
{{- $_ := set $into $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What the schema can't say, because a pair is put together from two places. */}}
{{- define "tandem.checked" -}}
{{- $config := default dict .settings.config -}}
{{- $topics := default dict $config.topics -}}
{{- if not (get (default dict $config.kafka) "bootstrap.servers") -}}
{{- fail (printf "%s: config.kafka.bootstrap.servers: required; set it here or in defaults.config" .place) -}}
{{- end -}}
{{- if not (default dict $config.store).root -}}
{{- fail (printf "%s: config.store.root: required; set it here or in defaults.config, as s3://bucket/prefix, gs://bucket/prefix or az://container/prefix" .place) -}}
{{- end -}}
{{- if not (or $topics.include $topics.patterns $topics.presets) -}}
{{- fail (printf "%s: config.topics: guards nothing; set include, patterns or presets" .place) -}}
{{- end -}}
{{- $grace := include "tandem.seconds" (default "25s" (default dict $config.shutdown).grace) | float64 -}}
{{- if lt (subf .settings.terminationGracePeriodSeconds $grace) 5.0 -}}
{{- fail (printf "%s: terminationGracePeriodSeconds: %v is less than 5 s longer than config.shutdown.grace (%vs); raise it" .place .settings.terminationGracePeriodSeconds $grace) -}}
{{- end -}}
{{- if and .settings.stateVolume.enabled (or (default dict $config.state).dir (hasKey .settings.env "TANDEM_STATE__DIR")) -}}
{{- fail (printf "%s: stateVolume.enabled: config.state.dir, or env.TANDEM_STATE__DIR, names a folder already; keep one of the two" .place) -}}
{{- end -}}
{{- $limit := get (default dict (default dict .settings.resources).limits) "memory" -}}
{{- $budget := default "160MiB" (default dict $config.memory).budget -}}
{{- $free := subf (include "tandem.bytes" (default "1Ei" $limit) | float64) (include "tandem.bytes" $budget | float64) -}}
{{- if lt $free 134217728.0 -}}
{{- fail (printf "%s: resources.limits.memory: %v leaves less than 128Mi beside config.memory.budget (%v), which an instance needs for everything else; raise the one or lower the other" .place $limit $budget) -}}
{{- end -}}
{{- range $name, $_ := .settings.credentials -}}
{{- if hasKey $.settings.secretEnv $name -}}
{{- fail (printf "%s: credentials.%s: is in secretEnv as well; keep one of the two" $.place $name) -}}
{{- end -}}
{{- end -}}
{{- if and (or .settings.restore.enabled .settings.restore.onDemand) (not .settings.restore.args) -}}
{{- fail (printf "%s: restore.args: required; for example [--suffix, .restored]" .place) -}}
{{- end -}}
{{- end -}}

{{/* A value as it was written. Numbers come as floats from YAML, and would get an exponent from a million on. */}}
{{- define "tandem.text" -}}
{{- if kindIs "float64" . -}}
{{- toJson . -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end -}}

{{/* Bytes of a size of the configuration, or of a quantity of Kubernetes. Plain numbers come as floats from YAML. */}}
{{- define "tandem.bytes" -}}
{{- $text := kindIs "float64" . | ternary (printf "%.0f" (. | float64)) (toString .) -}}
{{- $unit := regexFind "[A-Za-z]*$" $text | lower | trimSuffix "b" -}}
{{- $sizes := dict "" 1 "k" 1e3 "m" 1e6 "g" 1e9 "t" 1e12 "p" 1e15 "e" 1e18 "ki" 1024 "mi" 1048576 "gi" 1073741824 "ti" 1099511627776 "pi" 1125899906842624 "ei" 1152921504606846976 -}}
{{- printf "%.0f" (mulf (regexFind "^[0-9.]+([eE][0-9]+)?" $text | float64) (get $sizes $unit)) -}}
{{- end -}}

{{/* Seconds of a duration of the configuration. */}}
{{- define "tandem.seconds" -}}
{{- $number := regexFind "^[0-9.]+" . | float64 -}}
{{- $unit := regexFind "[a-z]+$" . | default "s" -}}
{{- mulf $number (get (dict "ms" 0.001 "s" 1 "m" 60 "h" 3600 "d" 86400 "w" 604800) $unit) -}}
{{- end -}}
