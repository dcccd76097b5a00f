RUN=${XDG_STATE_HOME:-$HOME/.local/state}/ron/run
T=$(ron token --audience svc-rewarder)
rewarder() { curl -sS --fail-with-body --unix-socket $RUN/svc-rewarder/api.sock -H "Authorization: Bearer $T" "$@"; echo; }
printf 'account,metric,amount\nacct:alice,storage,30\nacct:bob,storage,10\n' > usage.csv
CID=$(rewarder -H 'Content-Type: text/csv' --data-binary @usage.csv http://localhost/rewarder/snapshots | jq -r .cid)
rewarder -H 'Accept: application/json' http://localhost/rewarder/snapshots/$CID      # accounts and sums by metric
rewarder http://localhost/rewarder/epochs
