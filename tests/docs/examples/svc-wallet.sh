RUN=${XDG_STATE_HOME:-$HOME/.local/state}/ron/run
T=$(ron token --audience svc-wallet)
wallet() { curl -sS --fail-with-body --unix-socket $RUN/svc-wallet/api.sock -H "Authorization: Bearer $T" "$@"; echo; }
post() { wallet -H "Idempotency-Key: $1" -H 'Content-Type: application/json' -d "$3" http://localhost/v1/$2; }
post api-1 issue '{"to":"acct:carol","asset":"ron","amount_minor":"1000"}'
PAID=$(post api-2 transfer '{"from":"acct:carol","to":"acct:dave","asset":"ron","amount_minor":"250","reference":"order-17"}')
echo "$PAID"
wallet "http://localhost/v1/balance?account=acct:dave&asset=ron&min_seq=$(echo "$PAID" | jq .receipt.seq)"
wallet -H 'Prefer: wait=5' http://localhost/v1/tx/$(echo "$PAID" | jq -r .receipt.txid)/receipt      # verifies alone
