RUN=${XDG_STATE_HOME:-$HOME/.local/state}/ron/run
T=$(ron token --audience ron-kms)
kms() { curl -sS --fail-with-body --unix-socket $RUN/ron-kms/api.sock -H "Authorization: Bearer $T" "$@"; echo; }
post() { kms -H 'Content-Type: application/json' -d "$2" http://localhost/v1/kms/$1; }
OP=$(cat /proc/sys/kernel/random/uuid)      # the same id makes the same key, however often it is sent
KEY=$(post keys "{\"op_id\":\"$OP\",\"tenant\":\"default\",\"purpose\":\"app\",\"alg\":\"ed25519\"}" | jq -r .key)
MESSAGE=$(printf hello | basenc --base64url | tr -d =)
SIGNED=$(post sign "{\"key\":\"$KEY\",\"message\":\"$MESSAGE\"}")
echo "$SIGNED"      # the signature, and the index of the leaf in the audit log that records it
post verify "{\"key\":\"$KEY\",\"message\":\"$MESSAGE\",\"signatures\":$(echo "$SIGNED" | jq -c .signatures)}"
# A checkpoint covers the leaf within a second or so; until then the answer is 409.
kms --retry 20 --retry-delay 1 --retry-all-errors -o leaf.tlog-proof http://localhost/audit/v1/proof/$(echo "$SIGNED" | jq .receipt.index)
cat leaf.tlog-proof
