{{- define "triton-sam.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "triton-sam.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "triton-sam.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "triton-sam.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* What never changes between releases of the chart: selectors are immutable. */}}
{{- define "triton-sam.selector" -}}
app.kubernetes.io/name: {{ include "triton-sam.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "triton-sam.serverSelector" -}}
{{ include "triton-sam.selector" . }}
app.kubernetes.io/component: server
{{- end }}

{{- define "triton-sam.labels" -}}
{{ include "triton-sam.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "triton-sam.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "triton-sam.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "triton-sam.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default (printf "%s-%s" .Chart.AppVersion (ternary "gpu" "cpu" .Values.gpu.enabled)) .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* Name of the secret with the one token; empty where there is none. */}}
{{- define "triton-sam.secret" -}}
{{- if .Values.auth.existingSecret }}
{{- .Values.auth.existingSecret }}
{{- else if .Values.auth.token }}
{{- printf "%s-token" (include "triton-sam.fullname" .) }}
{{- else if not (or .Values.auth.tokensSecret .Values.auth.anonymous) }}
{{- fail "the service would be open to everybody: set auth.existingSecret, auth.token or auth.tokensSecret, or auth.anonymous=true if that is meant" }}
{{- end }}
{{- end }}

{{- define "triton-sam.secretKey" -}}
{{- if .Values.auth.existingSecret }}{{ .Values.auth.existingSecretKey }}{{ else }}token{{ end }}
{{- end }}

{{- define "triton-sam.checkModels" -}}
{{- if not (or .Values.models.segmenters .Values.models.vlms) }}
{{- fail "there is nothing to serve: name models in models.segmenters or models.vlms" }}
{{- end }}
{{- end }}

{{/* Values that would leave GPUs idle are refused: nobody would notice. */}}
{{- define "triton-sam.checkGpus" -}}
{{- if gt (int .Values.gpus) 1 }}
{{- if not .Values.gpu.enabled }}
{{- fail (printf "gpus is %d, but gpu.enabled is false: turn one of them off" (int .Values.gpus)) }}
{{- end }}
{{- $onnx := and .Values.models.setup (has .Values.models.engine (list "onnx" "auto")) }}
{{- if and $onnx .Values.models.segmenters (not .Values.settings.DEVICES) }}
{{- fail (printf "models.engine is %s, which uses one GPU of %d: set it to torch, or name the GPUs in settings.DEVICES" .Values.models.engine (int .Values.gpus)) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Triton processes of each segmenter, at most: without the setting, several GPUs have up to 8, by the node's cores. */}}
{{- define "triton-sam.processes" -}}
{{- $set := int (default "0" .Values.settings.PROCESSES) }}
{{- if $set }}{{ $set }}{{ else }}{{ ternary 8 1 (gt (int .Values.gpus) 1) }}{{ end }}
{{- end }}

{{/* A quantity like 4Gi in Mi. */}}
{{- define "triton-sam.mebibytes" -}}
{{- $units := dict "Mi" 1 "Gi" 1024 "Ti" 1048576 }}
{{- mul (regexFind "^[0-9]+" .) (get $units (regexFind "[A-Z]i$" .)) }}
{{- end }}

{{- define "triton-sam.sharedMemory" -}}
{{- $further := mul (sub (include "triton-sam.processes" . | int) 1) (len .Values.models.segmenters) }}
{{- if $further }}
{{- $each := include "triton-sam.mebibytes" .Values.storage.sharedMemoryPerProcess }}
{{- add (include "triton-sam.mebibytes" .Values.storage.sharedMemory) (mul $further $each) }}Mi
{{- else }}
{{- .Values.storage.sharedMemory }}
{{- end }}
{{- end }}

{{/* The server's resources: what values say of one GPU, times the GPUs, and the GPUs themselves. */}}
{{- define "triton-sam.resources" -}}
{{- $gpus := int .Values.gpus }}
{{- $resources := deepCopy .Values.resources }}
{{- if gt $gpus 1 }}
{{- range $kind := list "requests" "limits" }}
{{- $total := dict }}
{{- range $name, $amount := get $resources $kind }}
{{- $text := toString $amount }}
{{- if not (regexMatch "^[0-9]+([mkMGT]|[KMGT]i)?$" $text) }}
{{- fail (printf "resources.%s.%s is %s: with several GPUs it is multiplied and must be a whole number with a unit, like 1536Mi" $kind $name $text) }}
{{- end }}
{{- $_ := set $total $name (printf "%d%s" (mul (regexFind "^[0-9]+" $text) $gpus) (regexReplaceAll "^[0-9]+" $text "")) }}
{{- end }}
{{- if $total }}
{{- $_ := set $resources $kind $total }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.gpu.enabled }}
{{- $_ := set $resources "limits" (merge (dict .Values.gpu.resource $gpus) (default (dict) $resources.limits)) }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{- define "triton-sam.repositoryArguments" -}}
{{- if .Values.sharedRepository.existingClaim }}
- --model-repository
- {{ printf "/models/%s" .Values.sharedRepository.path | quote }}
{{- end }}
{{- end }}

{{/* The pod's own rights: none but to run as user 1000. */}}
{{- define "triton-sam.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "triton-sam.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* What every container of the image needs: its settings and writable folders, since the rest is read-only. */}}
{{- define "triton-sam.environment" -}}
- name: TRITON_SAM_HOME
  value: /data
- name: HOME
  value: /data
- name: HF_HOME
  value: /data/huggingface
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "triton-sam.environmentFrom" -}}
- configMapRef:
    name: {{ include "triton-sam.fullname" . }}
{{- end }}

{{- define "triton-sam.commonMounts" -}}
- name: data
  mountPath: /data
- name: tmp
  mountPath: /tmp
{{- end }}

{{- define "triton-sam.temporaryVolumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.storage.temporary }}
{{- end }}

{{/* Containers that write the models: for each pod before it serves, or once into a shared claim. */}}
{{- define "triton-sam.setupContainers" -}}
{{- $shared := .Values.sharedRepository.existingClaim }}
{{- if .Values.models.segmenters }}
- name: setup-segmenters
  {{- include "triton-sam.setupContainer" . | nindent 2 }}
  args:
    - setup
    {{- toYaml .Values.models.segmenters | nindent 4 }}
    - --engine
    - {{ .Values.models.engine }}
    {{- include "triton-sam.repositoryArguments" . | nindent 4 }}
{{- end }}
{{- if .Values.models.vlms }}
- name: setup-vlms
  {{- include "triton-sam.setupContainer" . | nindent 2 }}
  args:
    - setup
    {{- toYaml .Values.models.vlms | nindent 4 }}
    {{- include "triton-sam.repositoryArguments" . | nindent 4 }}
{{- end }}
{{- end }}

{{/* The weights of a vision-language model stay in /data, so every pod fetches them for itself. */}}
{{- define "triton-sam.pullContainers" -}}
{{- range $number, $id := .Values.models.vlms }}
- name: pull-vlm-{{ $number }}
  {{- include "triton-sam.setupContainer" $ | nindent 2 }}
  args: [pull, {{ $id | quote }}]
{{- end }}
{{- end }}

{{- define "triton-sam.setupContainer" -}}
image: {{ include "triton-sam.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [triton-sam]
env:
  {{- include "triton-sam.environment" . | nindent 2 }}
envFrom:
  {{- include "triton-sam.environmentFrom" . | nindent 2 }}
securityContext:
  {{- include "triton-sam.containerSecurity" . | nindent 2 }}
resources:
  {{- toYaml .Values.setupResources | nindent 2 }}
volumeMounts:
  {{- include "triton-sam.commonMounts" . | nindent 2 }}
  {{- if .Values.sharedRepository.existingClaim }}
  - name: models
    mountPath: /models
  {{- end }}
{{- end }}
