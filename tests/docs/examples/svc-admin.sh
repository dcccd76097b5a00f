RUN=${XDG_STATE_HOME:-$HOME/.local/state}/ron/run
T=$(ron token --audience svc-admin)
admin() { curl -sS --fail-with-body --unix-socket $RUN/svc-admin/api.sock -H "Authorization: Bearer $T" "$@"; echo; }
admin http://localhost/api/overview | jq -c '.nodes[].summary | {id, state, reasons}'
admin 'http://localhost/api/timeline?least=warn' | jq -c '.entries[0]'
admin http://localhost/api/log-heads
