# slurmkit in a container: installed from the mounted checkout, set up as docker/conf/login says.
# shellcheck shell=bash disable=SC2154,SC2034 # set by lib.sh; templates name their variables

SOURCE=/opt/slurmkit/src
VENV=/opt/slurmkit/venv
LOGIN_ADDRESS=/etc/slurmkit/login.address

install_slurmkit() {
    local copy
    if [[ ! -e $SOURCE/pyproject.toml ]]; then
        log "slurmkit is not installed: the checkout has no pyproject.toml"
        return
    fi
    # The build writes beside the sources, and the checkout is mounted read-only.
    copy=$(mktemp -d)
    tar -C "$SOURCE" --exclude=./.git --exclude=./.venv --exclude=./docker --exclude='.*_cache' \
        --exclude=./build --exclude=./dist --exclude=__pycache__ -c . | tar -C "$copy" -x
    if ! "$VENV/bin/pip" install --quiet --disable-pip-version-check --root-user-action=ignore \
        --no-index --no-deps --no-build-isolation --force-reinstall "$copy" >"$copy.log" 2>&1; then
        tail -n 20 "$copy.log" >&2
        rm -rf "$copy" "$copy.log"
        log "slurmkit could not be installed from the checkout: pip's last lines are above"
        return 1
    fi
    rm -rf "$copy" "$copy.log"
    ln -sf "$VENV/bin/slurmkit" /usr/local/bin/slurmkit
    log "$(slurmkit --version 2>&1 | tail -n 1) is installed"
}

# Sshd listens on a port of the host that Docker has chosen; `keep_login_address` noted which.
configure_site() {
    local address TUNNEL='' SERVICE
    SERVICE=$(cat "$CONF/login/service-$AUTH.toml")
    if [[ -s $LOGIN_ADDRESS ]]; then
        address=$(<"$LOGIN_ADDRESS")
        printf -v TUNNEL '\n[tunnel]\nlogin = "%s"\nport = %d' "${address%:*}" "${address##*:}"
    fi
    render login/config.toml /etc/slurmkit/config.toml root:root 0644 TUNNEL SERVICE
}

# Reads HOST:PORT from standard input.
keep_login_address() {
    cat >"$LOGIN_ADDRESS"
    configure_site
}

# Where a site has its own authority in the system's: OpenSSL finds it there, by the hash of its name.
trust_authority() {
    local hash
    hash=$(openssl x509 -noout -hash -in "$SECRETS/ca.pem")
    ln -sf /etc/slurmkit/ca.pem "/etc/ssl/certs/$hash.0"
}

# slurmkit's settings, and the system account that keeps the books, with settings of its own.
configure_slurmkit() {
    local home=/var/lib/slurmkit
    configure_site
    install -m 0644 "$SECRETS/ca.pem" /etc/slurmkit/ca.pem
    [[ $AUTH == munge ]] || trust_authority
    install -o root -g slurmkit -m 0640 "$SECRETS/ldap-reader.password" /etc/slurmkit/ldap.password
    install -d -o slurmkit -g slurmkit -m 0750 "$home"
    install -o slurmkit -g slurmkit -m 0600 /dev/null "$home/.pgpass"
    echo "postgres:5432:*:slurmkit:$(secret postgres.password)" >"$home/.pgpass"
    configure_account "$1" "$home/.config/slurmkit/config.toml"
}

# configure_account TEMPLATE FILE: with PORTAL_URL, the service also serves the pages for PIs.
configure_account() {
    local PORTAL=''
    [[ -z ${PORTAL_URL:-} ]] || printf -v PORTAL '\n[ledger.portal]\n%s\nurl = "%s"\nlogin = ["ldap"]' \
        'listen = "unix:/run/slurmkit-portal/socket"' "$PORTAL_URL"
    render "login/$1" "$2" slurmkit:slurmkit 0644 PORTAL
}
