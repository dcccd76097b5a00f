DATA=${XDG_STATE_HOME:-$HOME/.local/state}/ron
passport() { curl -sS --fail-with-body --unix-socket $DATA/run/svc-passport/api.sock "$@"; echo; }
CLIENT=$(jq -r '.client_id + ":" + .client_secret' $DATA/clients/operator.json)
T=$(passport -u "$CLIENT" -d grant_type=client_credentials -d audience=svc-wallet -d scope=wallet:read http://localhost/oauth2/token | jq -r .access_token)
passport -H 'Content-Type: application/json' -d "{\"token\":\"$T\"}" http://localhost/v1/passport/verify
passport -u "$CLIENT" -d token=$T http://localhost/oauth2/revoke
passport -H 'Content-Type: application/json' -d "{\"token\":\"$T\"}" http://localhost/v1/passport/verify      # revoked
passport http://localhost/.well-known/jwks.json
