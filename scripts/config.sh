# shellcheck shell=bash
# Settings of the machine, sourced by the other scripts: scripts/config.local (see config.local.example), then the
# cluster's row of clusters.local or clusters.conf. DANALAB_CLUSTER names the cluster if it cannot be detected.
#
#   bash scripts/config.sh      # print what is set

DANALAB_HOME=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export DANALAB_HOME

if [[ -f $DANALAB_HOME/scripts/config.local ]]; then
    _danalab_given=$(export -p) # the environment wins over the file
    set -a
    # shellcheck source=/dev/null
    source "$DANALAB_HOME/scripts/config.local"
    set +a
    eval "$_danalab_given"
    unset _danalab_given
fi

# Defaults of settings that are neither in the environment nor in config.local.
export RESULTS_BASE_FOLDER=${RESULTS_BASE_FOLDER:-runs}
export DATASETS_DIR=${DATASETS_DIR:-datasets}

# Find the cluster's row: by DANALAB_CLUSTER (or DSTAR_CLUSTER, its old name) if set, else by pattern.
_danalab_cluster() {
    local wanted=${DANALAB_CLUSTER:-${DSTAR_CLUSTER:-}} here=${SLURM_CLUSTER_NAME:-${HOSTNAME:-$(hostname)}}
    local name patterns modules pattern found=
    local -a all=() files=()
    for file in clusters.local clusters.conf; do
        [[ ! -f $DANALAB_HOME/scripts/$file ]] || files+=("$DANALAB_HOME/scripts/$file")
    done
    while read -r name patterns modules; do
        [[ -n $name && $name != \#* ]] || continue
        all+=("$name")
        [[ -z $found ]] || continue
        if [[ -n $wanted ]]; then
            [[ $name != "$wanted" ]] || found="$name $modules"
            continue
        fi
        local -a choices
        IFS='|' read -r -a choices <<<"$patterns"
        for pattern in "${choices[@]}"; do
            # shellcheck disable=SC2053 # a pattern is meant
            [[ $here != $pattern ]] || found="$name $modules"
        done
    done < <(cat "${files[@]}")
    if [[ -z $found ]]; then
        echo "config.sh: error: no cluster '$wanted'; known: ${all[*]}; add a row to scripts/clusters.local" >&2
        return 2
    fi
    read -r DANALAB_CLUSTER DANALAB_MODULES <<<"$found"
    export DANALAB_CLUSTER
    if [[ $DANALAB_MODULES != - ]] && command -v module >/dev/null; then
        # shellcheck disable=SC2086 # one word for each module
        module load $DANALAB_MODULES
    fi
}
_danalab_cluster || exit 2

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
    for setting in DANALAB_CLUSTER DANALAB_MODULES DATASETS_DIR RESULTS_BASE_FOLDER TIKTOKEN_CACHE_DIR HF_HOME \
        WANDB_PROJECT WANDB_ENTITY WANDB_MODE; do
        echo "$setting=${!setting:-}"
    done
fi
