# Completion of the kiln command in bash. Made by `kiln completion` from the command's own tables.
_kiln_words() {
    mapfile -t COMPREPLY < <(compgen -W "$1" -- "$current")
}
# Paths (-f files, -d folders) and, with a second argument, words.
_kiln_paths() {
    compopt -o filenames
    mapfile -t COMPREPLY < <(compgen -W "${2-}" -- "$current"; compgen "$1" -- "$current")
}
_kiln() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local models="mlp lenet resnet18 resnet50 vit-tiny autoencoder char-lstm gpt2"
    if ((COMP_CWORD == 1)); then
        _kiln_words "train eval predict generate inspect plot plan bench devices help --version"
        return
    fi
    # --option=value arrives as three words
    if [[ $current == = ]]; then
        current=
    elif [[ $previous == = ]]; then
        previous=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    case ${COMP_WORDS[1]} in
    train)
        case $previous in
        --model) _kiln_paths -f "$models" ;;
        --data) _kiln_paths -f digits ;;
        --split) COMPREPLY=() ;;
        --length) COMPREPLY=() ;;
        --crop) COMPREPLY=() ;;
        --dropout) COMPREPLY=() ;;
        --init) _kiln_paths -f ;;
        --device) _kiln_words "auto cpu cuda opencl" ;;
        --threads) COMPREPLY=() ;;
        --workers) COMPREPLY=() ;;
        --mem-limit) COMPREPLY=() ;;
        --epochs) COMPREPLY=() ;;
        --limit) COMPREPLY=() ;;
        --batch) COMPREPLY=() ;;
        --accumulate) COMPREPLY=() ;;
        --lr) COMPREPLY=() ;;
        --optim) _kiln_words "sgd adam adamw rmsprop adagrad lion" ;;
        --momentum) COMPREPLY=() ;;
        --weight-decay) COMPREPLY=() ;;
        --schedule) _kiln_words "constant step cosine one-cycle exponential plateau" ;;
        --warmup) COMPREPLY=() ;;
        --clip) COMPREPLY=() ;;
        --ema) COMPREPLY=() ;;
        --early-stop) COMPREPLY=() ;;
        --seed) COMPREPLY=() ;;
        --save) _kiln_paths -d ;;
        --save-every) COMPREPLY=() ;;
        --log) _kiln_paths -f ;;
        --log-every) COMPREPLY=() ;;
        *) if [[ $current == -* ]]; then
               _kiln_words "--model --data --split --length --flip --crop --dropout --init --device --threads --workers --mem-limit --tf32 --epochs --limit --batch --accumulate --lr --optim --momentum --weight-decay --schedule --warmup --clip --ema --early-stop --seed --no-shuffle --save --save-every --resume --log --log-every --quiet --help"
           else
               COMPREPLY=()
           fi ;;
        esac ;;
    eval)
        case $previous in
        --data) _kiln_paths -f digits ;;
        --split) COMPREPLY=() ;;
        --length) COMPREPLY=() ;;
        --model) _kiln_paths -f "$models" ;;
        --batch) COMPREPLY=() ;;
        --limit) COMPREPLY=() ;;
        --workers) COMPREPLY=() ;;
        --device) _kiln_words "auto cpu cuda opencl" ;;
        --threads) COMPREPLY=() ;;
        --mem-limit) COMPREPLY=() ;;
        *) if [[ $current == -* ]]; then
               _kiln_words "--data --split --length --model --confusion --batch --limit --workers --device --threads --mem-limit --tf32 --quiet --help"
           else
               _kiln_paths -f
           fi ;;
        esac ;;
    predict)
        case $previous in
        --data) _kiln_paths -f digits ;;
        --split) COMPREPLY=() ;;
        --model) _kiln_paths -f "$models" ;;
        --limit) COMPREPLY=() ;;
        --out | -o) _kiln_paths -f ;;
        --format) _kiln_words "csv json" ;;
        --batch) COMPREPLY=() ;;
        --length) COMPREPLY=() ;;
        --device) _kiln_words "auto cpu cuda opencl" ;;
        --threads) COMPREPLY=() ;;
        --mem-limit) COMPREPLY=() ;;
        *) if [[ $current == -* ]]; then
               _kiln_words "--data --split --model --limit --out --format --batch --length --device --threads --mem-limit --tf32 --help"
           else
               _kiln_paths -f
           fi ;;
        esac ;;
    generate)
        case $previous in
        --prompt) COMPREPLY=() ;;
        --length) COMPREPLY=() ;;
        --temperature) COMPREPLY=() ;;
        --top-k) COMPREPLY=() ;;
        --seed) COMPREPLY=() ;;
        --context) COMPREPLY=() ;;
        --model) _kiln_paths -f "$models" ;;
        --device) _kiln_words "auto cpu cuda opencl" ;;
        --threads) COMPREPLY=() ;;
        *) if [[ $current == -* ]]; then
               _kiln_words "--prompt --length --temperature --top-k --seed --context --model --device --threads --tf32 --help"
           else
               _kiln_paths -f
           fi ;;
        esac ;;
    inspect)
        case $previous in
        *) if [[ $current == -* ]]; then
               _kiln_words "--stats --help"
           else
               _kiln_paths -f
           fi ;;
        esac ;;
    plot)
        case $previous in
        --out | -o) _kiln_paths -f ;;
        --title) COMPREPLY=() ;;
        *) if [[ $current == -* ]]; then
               _kiln_words "--out --title --help"
           else
               _kiln_paths -f
           fi ;;
        esac ;;
    plan)
        case $previous in
        --model) _kiln_paths -f "$models" ;;
        --batch) COMPREPLY=() ;;
        --length) COMPREPLY=() ;;
        --optim) _kiln_words "sgd adam adamw rmsprop adagrad lion" ;;
        --mem-limit) COMPREPLY=() ;;
        --device) _kiln_words "auto cpu cuda opencl" ;;
        --threads) COMPREPLY=() ;;
        *) if [[ $current == -* ]]; then
               _kiln_words "--model --batch --length --optim --mem-limit --summary --kernels --device --threads --tf32 --help"
           else
               COMPREPLY=()
           fi ;;
        esac ;;
    bench)
        case $previous in
        --model) _kiln_paths -f "$models" ;;
        --batch) COMPREPLY=() ;;
        --length) COMPREPLY=() ;;
        --optim) _kiln_words "sgd adam adamw rmsprop adagrad lion" ;;
        --seconds) COMPREPLY=() ;;
        --device) _kiln_words "auto cpu cuda opencl" ;;
        --threads) COMPREPLY=() ;;
        --mem-limit) COMPREPLY=() ;;
        *) if [[ $current == -* ]]; then
               _kiln_words "--model --batch --length --optim --seconds --device --threads --mem-limit --tf32 --help"
           else
               COMPREPLY=()
           fi ;;
        esac ;;
    devices)
        case $previous in
        *) if [[ $current == -* ]]; then
               _kiln_words "--help"
           else
               COMPREPLY=()
           fi ;;
        esac ;;
    help) _kiln_words "train eval predict generate inspect plot plan bench devices" ;;
    esac
}
complete -F _kiln kiln
