{{- define "tollgate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "tollgate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "tollgate.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "tollgate.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tollgate.selector" -}}
app.kubernetes.io/name: {{ include "tollgate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The labels of the pod of `helm test`, which the selector of the service and of the NetworkPolicy must not match. */}}
{{- define "tollgate.testSelector" -}}
app.kubernetes.io/name: {{ printf "%s-test" (include "tollgate.name" . | trunc 58 | trimSuffix "-") }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tollgate.labels" -}}
{{ include "tollgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "tollgate.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tollgate.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "tollgate.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* The doors that are open, as a YAML list of names. The first is the door for probes and metrics: if the
admin door is open, clients that use all connections of the HTTP door cannot make the probes fail. */}}
{{- define "tollgate.doors" -}}
{{- $open := list "http" -}}
{{- range $name := list "grpc" "resp" "gateway" "admin" -}}
{{- if (index $.Values.doors $name).enabled }}{{ $open = append $open $name }}{{ end -}}
{{- end -}}
{{- join " " $open -}}
{{- end -}}

{{- define "tollgate.probeDoor" -}}
{{- if .Values.doors.admin.enabled }}admin{{ else }}http{{ end -}}
{{- end -}}

{{/* Whether the Secret with environment variables exists, and its name. */}}
{{- define "tollgate.secretName" -}}
{{- if .Values.secret.existing -}}
{{- .Values.secret.existing -}}
{{- else if .Values.secret.values -}}
{{- include "tollgate.fullname" . -}}
{{- end -}}
{{- end -}}

{{/* The `server` section: what the chart knows, below what config.server says. */}}
{{- define "tollgate.server" -}}
{{- $server := dict -}}
{{- range $name := splitList " " (include "tollgate.doors" .) -}}
{{- $door := index $.Values.doors $name -}}
{{- $_ := set $server $name (dict "address" (printf "%s:%d" $.Values.doors.address (int $door.port))) -}}
{{- end -}}
{{- if .Values.doors.admin.enabled -}}
{{- $service := include "tollgate.fullname" . -}}
{{- $long := printf "%s.%s.svc" $service .Release.Namespace -}}
{{- $hosts := list $service (printf "%s.%s" $service .Release.Namespace) $long (printf "%s.cluster.local" $long) -}}
{{- $_ := set $server.admin "hosts" (concat $hosts .Values.doors.admin.hosts) -}}
{{- $_ := set $server.admin "tokens" .Values.doors.admin.tokens -}}
{{- end -}}
{{- if .Values.tls.secretName -}}
{{- $tls := dict "cert" "/etc/tollgate/tls/tls.crt" "key" "/etc/tollgate/tls/tls.key" -}}
{{- if .Values.tls.requireClientCertificates }}{{ $_ := set $tls "client_ca" "/etc/tollgate/tls/ca.crt" }}{{ end -}}
{{- $_ := set $server "tls" $tls -}}
{{- end -}}
{{- if .Values.drainSeconds }}{{ $_ := set $server "drain" (printf "%ds" (int .Values.drainSeconds)) }}{{ end -}}
{{- toYaml (mergeOverwrite $server (deepCopy (default dict .Values.config.server))) -}}
{{- end -}}

{{- define "tollgate.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "server" (include "tollgate.server" . | fromYaml) -}}
{{- toYaml $config -}}
{{- end -}}

{{/* Mistakes that would only show when the pods start, or never. */}}
{{- define "tollgate.check" -}}
{{- $store := default dict .Values.config.store -}}
{{- $redis := and (kindIs "map" $store) (hasKey $store "redis") -}}
{{- $most := ternary (int .Values.autoscaling.maxReplicas) (int .Values.replicaCount) .Values.autoscaling.enabled -}}
{{- if and (gt $most 1) (not $redis) -}}
{{- fail "several replicas share their counts only in Redis: set config.store.redis, or replicaCount: 1" -}}
{{- end -}}
{{- if and (gt $most 1) .Values.persistence.enabled -}}
{{- fail "a volume belongs to one pod: set persistence.enabled: false, or replicaCount: 1" -}}
{{- end -}}
{{- $ledger := default dict .Values.config.ledger -}}
{{- if and (hasKey $ledger "sqlite") (gt $most 1) -}}
{{- fail "an SQLite ledger belongs to one server: set config.ledger.postgres, or replicaCount: 1" -}}
{{- end -}}
{{- if and (hasKey $ledger "sqlite") (not .Values.persistence.enabled) -}}
{{- fail "an SQLite ledger needs a volume: set persistence.enabled: true" -}}
{{- end -}}
{{- if and .Values.doors.admin.enabled (not .Values.doors.admin.tokens) -}}
{{- fail "the admin door needs tokens: set doors.admin.tokens, or doors.admin.enabled: false" -}}
{{- end -}}
{{- if and .Values.doors.gateway.enabled (not .Values.config.upstreams) -}}
{{- fail "the gateway needs upstreams: set config.upstreams, or doors.gateway.enabled: false" -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (eq .Values.serviceMonitor.door "admin") -}}
{{- if not .Values.doors.admin.enabled -}}
{{- fail "serviceMonitor.door: admin needs the door: set doors.admin.enabled: true" -}}
{{- end -}}
{{- if not .Values.serviceMonitor.authorization -}}
{{- fail "the admin door asks for a token: set serviceMonitor.authorization, or serviceMonitor.door: http" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.tls.requireClientCertificates (not .Values.tls.secretName) -}}
{{- fail "tls.requireClientCertificates needs tls.secretName" -}}
{{- end -}}
{{- $least := add (default 5 .Values.drainSeconds) 50 -}}
{{- if lt (int .Values.terminationGracePeriodSeconds) (int $least) -}}
{{- fail (printf "terminationGracePeriodSeconds must be at least %d: the drain and 50 s" $least) -}}
{{- end -}}
{{- end -}}

{{- define "tollgate.serverName" -}}
{{- default (printf "%s.%s.svc" (include "tollgate.fullname" .) .Release.Namespace) .Values.tls.serverName -}}
{{- end -}}

{{/* A probe. Takes the root context and the path. The kubelet does not check certificates and has none of its own:
if clients need one, the program in the pod asks with the certificate of the server. */}}
{{- define "tollgate.probe" -}}
{{- $root := index . 0 -}}
{{- $live := index . 1 -}}
{{- $door := include "tollgate.probeDoor" $root -}}
{{- if $root.Values.tls.requireClientCertificates -}}
exec:
  command:
    - tollgate
    - health
    - --server
    - https://127.0.0.1:{{ (index $root.Values.doors $door).port }}
    - --server-name
    - {{ include "tollgate.serverName" $root }}
    - --ca
    - /etc/tollgate/tls/ca.crt
    - --cert
    - /etc/tollgate/tls/tls.crt
    - --key
    - /etc/tollgate/tls/tls.key
    {{- if $live }}
    - --live
    {{- end }}
{{- else -}}
httpGet:
  path: {{ ternary "/healthz" "/readyz" $live }}
  port: {{ $door }}
  {{- if $root.Values.tls.secretName }}
  scheme: HTTPS
  {{- end }}
{{- end }}
{{- end -}}
