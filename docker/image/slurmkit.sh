# slurmkit in a container: installed from the mounted checkout, set up as docker/conf/login says.
# shellcheck shell=bash disable=SC2154 # set by lib.sh

SOURCE=/opt/slurmkit/src
VENV=/opt/slurmkit/venv

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

# slurmkit's settings, and the system account that keeps the books, with settings of its own.
configure_slurmkit() {
    local home=/var/lib/slurmkit own=$1
    render login/config.toml /etc/slurmkit/config.toml root:root 0644
    install -m 0644 "$SECRETS/ca.pem" /etc/slurmkit/ca.pem
    install -o root -g slurmkit -m 0640 "$SECRETS/ldap-reader.password" /etc/slurmkit/ldap.password
    install -d -o slurmkit -g slurmkit -m 0750 "$home"
    install -o slurmkit -g slurmkit -m 0600 /dev/null "$home/.pgpass"
    echo "postgres:5432:*:slurmkit:$(secret postgres.password)" >"$home/.pgpass"
    render "login/$own" "$home/.config/slurmkit/config.toml" slurmkit:slurmkit 0644
}
