#!/bin/sh
# Fetches the spotsurfer agent, checks it, starts it. What is between @ signs is put in by the controller; the rest is plain sh.
set -u
umask 077
@VALUES@

say() { echo "spotsurfer: $*" >&2; }

systemd() { read -r first </proc/1/comm && [ "$first" = systemd ] && command -v systemctl >/dev/null 2>&1; }

end() {
  say "$*: the machine is ended"
  if [ -n "$power_off" ]; then sh -c "$power_off"; exit 1; fi
  read -r first </proc/1/comm || first=
  case $first in
    systemd) systemctl poweroff ;;
    init | busybox) poweroff ;;
    *) kill -TERM 1 ;;
  esac
  exit 1
}

# Nothing may change files that a job has mapped: an image of it would find them changed.
# Timers go first, and are waited for: one that is there when its service is masked fails, and the machine is degraded.
still() {
  timers="apt-daily.timer apt-daily-upgrade.timer dnf-automatic.timer dnf-automatic-install.timer dnf-makecache.timer
    snapd.refresh.timer update-notifier-download.timer fwupd-refresh.timer"
  services="unattended-upgrades.service apt-daily.service apt-daily-upgrade.service packagekit.service"
  # shellcheck disable=SC2086 # lists of words
  {
    systemctl stop --quiet $timers
    systemctl mask --quiet $timers
    systemctl mask --now --no-block --quiet $services
    systemctl reset-failed --quiet $timers
    # Google presses the power button when a notice begins: the machine would end then, instead of when the notice is over.
    if [ "$rights" = bearer ]; then
      mkdir -p /etc/systemd/logind.conf.d
      printf '[Login]\nHandlePowerKey=ignore\n' >/etc/systemd/logind.conf.d/spotsurfer.conf
      systemctl kill -s HUP systemd-logind.service
    fi
  } >/dev/null 2>&1 || :
}

# The machine's own credentials (IMDSv2) into id, secret, token. They are never arguments of a program: others could read them there.
role() {
  session=$(curl -fsS -m 5 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' "$metadata/latest/api/token") || return 1
  path=latest/meta-data/iam/security-credentials
  name=$(printf 'header = "X-aws-ec2-metadata-token: %s"\n' "$session" | curl -fsS -m 5 -K - "$metadata/$path/") || return 1
  said=$(printf 'header = "X-aws-ec2-metadata-token: %s"\n' "$session" | curl -fsS -m 5 -K - "$metadata/$path/$name") || return 1
  id=$(field AccessKeyId) secret=$(field SecretAccessKey) token=$(field Token)
  [ -n "$id" ] && [ -n "$secret" ] && [ -n "$token" ]
}

field() { printf '%s' "$said" | tr -d '\n' | sed -n 's/.*"'"$1"'" *: *"\([^"]*\)".*/\1/p'; }

# Signed by curl; those before 7.88 leave headers out of what they sign, so Python has to do it there.
signed_fetch() {
  role || { say "no credentials at $metadata: has the machine an instance profile?"; return 1; }
  empty=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
  printf 'user = "%s:%s"\nheader = "x-amz-security-token: %s"\nheader = "x-amz-content-sha256: %s"\n' \
    "$id" "$secret" "$token" "$empty" |
    curl -fsS --connect-timeout 10 --max-time 600 --aws-sigv4 "aws:amz:$region:s3" -K - -o "$1" "$url" && return
  command -v python3 >/dev/null 2>&1 || return 1
  printf '%s\n' "$id" "$secret" "$token" "$region" "$url" "$1" | python3 -c "$SIGN" 2>"$1.why" && return
  say "$(tail -n 1 "$1.why")"
  return 1
}

# What curl does, for one GET: AWS Signature Version 4 over the headers.
SIGN='
import datetime as d, hashlib as h, hmac, shutil, sys, urllib.parse as p, urllib.request as r
i, secret, token, region, url, to = sys.stdin.read().splitlines()
u, t, e = p.urlsplit(url), d.datetime.now(d.timezone.utc).strftime("%Y%m%dT%H%M%SZ"), h.sha256(b"").hexdigest()
names = {"host": u.netloc, "x-amz-content-sha256": e, "x-amz-date": t, "x-amz-security-token": token}
signed = ";".join(names)
ask = "\n".join(["GET", u.path, "", *[f"{k}:{v}" for k, v in names.items()], "", signed, e])
scope = f"{t[:8]}/{region}/s3/aws4_request"
key = ("AWS4" + secret).encode()
for part in scope.split("/"): key = hmac.new(key, part.encode(), "sha256").digest()
text = f"AWS4-HMAC-SHA256\n{t}\n{scope}\n{h.sha256(ask.encode()).hexdigest()}"
sign = hmac.new(key, text.encode(), "sha256").hexdigest()
names["Authorization"] = f"AWS4-HMAC-SHA256 Credential={i}/{scope}, SignedHeaders={signed}, Signature={sign}"
with r.urlopen(r.Request(url, headers=names), timeout=60) as a, open(to, "wb") as f: shutil.copyfileobj(a, f)'

# With a token of its service account (Google).
bearer_fetch() {
  account=$metadata/computeMetadata/v1/instance/service-accounts/default/token
  said=$(curl -fsS -m 5 -H 'Metadata-Flavor: Google' "$account") || { say "no token at $account: has the machine an account?"; return 1; }
  printf 'header = "Authorization: Bearer %s"\n' "$(field access_token)" |
    curl -fsS --connect-timeout 10 --max-time 600 -K - -o "$1" "$url"
}

fetch() {
  if [ -n "$rights" ]; then
    command -v curl >/dev/null 2>&1 || end "curl is not there"
    if [ "$rights" = bearer ]; then bearer_fetch "$1"; else signed_fetch "$1"; fi
  elif command -v curl >/dev/null 2>&1; then
    curl -fsS --connect-timeout 10 --max-time 600 -o "$1" "$url"
  elif command -v wget >/dev/null 2>&1; then
    wget -q -T 60 -t 1 -O "$1" "$url"
  elif command -v python3 >/dev/null 2>&1; then
    python3 -c 'import shutil, sys, urllib.request as u
with u.urlopen(sys.argv[1], timeout=60) as r, open(sys.argv[2], "wb") as f: shutil.copyfileobj(r, f)' "$url" "$1"
  else
    end "none of curl, wget, python3 is there"
  fi
}

matches() {
  # shellcheck disable=SC2046 # two words: digest and name
  set -- $(sha256sum "$1" 2>/dev/null) none
  [ "$1" = "$sha256" ]
}

pause() { if [ "$n" -lt 20 ]; then sleep "$n"; else sleep 30; fi; }

# The key by which the machine is known over SSH, and who may log in. A machine without sshd is none the worse.
login() {
  [ -d /etc/ssh ] || { say "no /etc/ssh: nobody can log in"; return; }
  if [ -n "$redeem" ]; then cat "$base/host_key" || return; else cat <<'END_OF_KEY'
@HOST_KEY@
END_OF_KEY
  fi >"/etc/ssh/ssh_host_ed25519_key.new"
  rm -f /etc/ssh/ssh_host_ed25519_key.pub
  mv /etc/ssh/ssh_host_ed25519_key.new /etc/ssh/ssh_host_ed25519_key
  if [ -n "$ssh_key" ] && ! getent passwd "$ssh_user" >/dev/null && command -v useradd >/dev/null 2>&1; then
    # Images of Google have no user.
    useradd -m -s /bin/bash "$ssh_user" && [ -d /etc/sudoers.d ] && (umask 227 && echo "$ssh_user ALL=(ALL) NOPASSWD:ALL" >/etc/sudoers.d/spotsurfer)
  fi
  home=$(getent passwd "$ssh_user" | cut -d: -f6)
  if [ -n "$home" ] && [ -n "$ssh_key" ]; then
    mkdir -p "$home/.ssh"
    grep -qxF "$ssh_key" "$home/.ssh/authorized_keys" 2>/dev/null || echo "$ssh_key" >>"$home/.ssh/authorized_keys"
    chmod 700 "$home/.ssh"
    chmod 600 "$home/.ssh/authorized_keys"
    chown -R "$ssh_user:" "$home/.ssh"
  fi
  ! systemd || systemctl try-reload-or-restart --no-block ssh.service sshd.service >/dev/null 2>&1 || :
}

! systemd || still
[ -z "$ssh_user" ] || [ -n "$redeem" ] || login

mkdir -p "$base/runtime" || end "$base can't be made"
chmod 755 "$base" "$base/runtime"
runtime=$base/runtime/$sha256
if [ ! -x "$runtime/bin/spotsurfer-agent" ]; then
  tarball=$base/runtime/fetched.tar.gz
  n=0
  until fetch "$tarball" && matches "$tarball"; do
    n=$((n + 1))
    [ "$n" -lt "$tries" ] || end "the runtime $sha256 can't be fetched"
    say "try $n failed, again soon"
    pause
  done
  rm -rf "$runtime.new"
  mkdir "$runtime.new" || end "$runtime.new can't be made"
  (umask 022 && tar -xzf "$tarball" -C "$runtime.new" --no-same-owner) || end "the runtime can't be unpacked"
  chmod 755 "$runtime.new"
  mv "$runtime.new" "$runtime" || end "$runtime can't be made"
  rm -f "$tarball"
fi
rm -f "$base/runtime/current"
ln -s "$runtime" "$base/runtime/current" || end "$base/runtime/current can't be made"

cat >"$base/agent.json.new" <<'END_OF_CONFIGURATION' || end "the configuration can't be written"
@CONFIG@
END_OF_CONFIGURATION
# What it leaves out is fetched once: from then on it is on this disk alone, and what this program carries opens nothing. The
# agent knows whether what lies there is of this attempt, or of a machine whose disk became the image of this one.
if [ -z "$redeem" ]; then
  mv "$base/agent.json.new" "$base/agent.json" || end "the configuration can't be written"
else
  n=0
  until "$base/runtime/current/bin/spotsurfer-agent" --redeem --config "$base/agent.json.new" --base "$base"; do
    n=$((n + 1))
    [ "$n" -lt "$tries" ] || end "the keys of this machine can't be fetched"
    pause
  done
fi
rm -f "$base/agent.json.new"
[ -z "$ssh_user" ] || [ -z "$redeem" ] || login

# A machine whose agent never gets a report out is of no use to anybody, and nobody may be there to end it.
if [ "$report_seconds" -gt 0 ] && [ ! -e "$base/reported" ]; then
  (
    trap '' HUP
    sleep "$report_seconds"
    [ -e "$base/reported" ] || end "no report was written for $report_seconds s"
  ) </dev/null >>"$base/boot.log" 2>&1 &
fi

if systemd; then
  cat >/etc/systemd/system/spotsurfer-agent.service <<'END_OF_UNIT' || end "the agent's unit can't be written"
@UNIT@
END_OF_UNIT
  chmod 644 /etc/systemd/system/spotsurfer-agent.service
  systemctl daemon-reload
  systemctl enable --quiet spotsurfer-agent.service || say "the agent would not start after a reboot"
  systemctl start --no-block spotsurfer-agent.service || end "the agent's unit can't be started"
else
  set -- --respawn --config "$base/agent.json" --base "$base"
  [ -z "$power_off" ] || set -- "$@" --power-off "$power_off"
  (
    trap '' HUP
    exec "$base/runtime/current/bin/spotsurfer-agent" "$@"
  ) </dev/null >>"$base/agent.log" 2>&1 &
fi
say "the agent is started, its log is $base/agent.log"
