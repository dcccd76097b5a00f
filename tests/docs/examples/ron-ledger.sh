RUN=${XDG_STATE_HOME:-$HOME/.local/state}/ron/run
ron wallet issue acct:alice 1000 --asset ron --key api-ledger-1      # writes go through svc-wallet
T=$(ron token --audience ron-ledger)
ledger() { curl -sS --fail-with-body --unix-socket $RUN/ron-ledger/api.sock -H "Authorization: Bearer $T" "$@"; echo; }
ledger http://localhost/v1/ledger/head
ledger http://localhost/v1/ledger/accounts/acct%3Aalice
ledger 'http://localhost/v1/ledger/entries?limit=1'
ledger http://localhost/log/v1/checkpoint
