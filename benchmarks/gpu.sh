#!/usr/bin/env bash
# Everything that needs a GPU: the tests in tests/gpu, and the benchmarks of docs/performance.md and docs/vllm.md.
# A step that fails or runs too long does not stop the next ones; the exit status says whether all passed.
#
#   bash benchmarks/gpu.sh OUT                       tests region_mass replay live growth
#   bash benchmarks/gpu.sh OUT STEP...               also: costs kernels, and where vLLM is installed: tests_vllm overhead
#                                                    overhead_baselines demo_vllm demo_bench
#
# PYTHON=python3: one whose torch sees the device. Each step's output goes to OUT/STEP.log, JSON and tables beside it.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:?usage: gpu.sh OUT [STEP...]}"); shift
steps=("$@"); [ $# -gt 0 ] || steps=(tests region_mass replay live growth)
python=${PYTHON:-python3}
mkdir -p "$out"
export PYTHONUNBUFFERED=1

command_of() {  # -> seconds, then what to run
  case $1 in
    tests) echo 300 -m pytest -q -n 8 -m gpu tests/gpu --ignore-glob=*/test_vllm_* ;;
    region_mass) echo 120 -m benchmarks.region_mass "$out" ;;
    replay) echo 300 -m benchmarks.replay "$out" ;;
    live) echo 180 -m benchmarks.live "$out" --device cuda --dtype bfloat16 ;;
    growth) echo 240 -m benchmarks.growth "$out" ;;
    kernels) echo 120 -m benchmarks.recorder_kernels "$out" ;;
    tests_vllm) echo 900 -m pytest -q -n 4 -rP -m gpu tests/gpu/test_vllm_*.py ;;
    costs) echo 200 -m driftscope probe --target demo --drafter eagle3.1=demo:eagle3.1 --num-prompts 4 --depth 7 \
      --costs 1,4,16,64,128,256,512 --costs-context-tokens 512,4096 --device cuda --dtype bfloat16 -o "$out/costs.drift" ;;
    demo_vllm) echo 300 -m driftscope probe --target demo --drafter eagle3=demo:eagle3 --drafter eagle3.1=demo:eagle3.1 \
      --engine vllm --level default --num-prompts 8 --device cuda --dtype bfloat16 -o "$out/demo_vllm.drift" ;;
    overhead) echo 900 -m benchmarks.vllm_overhead "$out/overhead" --variants stock,default,counts,heads --trace ;;
    demo_bench) echo 580 -m driftscope bench --target demo --drafter eagle3.1=demo:eagle3.1 --dtype bfloat16 --num-prompts 16 \
      --concurrency 1,16 --repetitions 10 --markdown ;;
    overhead_baselines) echo 580 -m benchmarks.vllm_overhead "$out/overhead_baselines" --variants eager,dump --pairs 20 ;;
    *) return 1 ;;
  esac
}

for step in "${steps[@]}"; do
  command_of "$step" >/dev/null || { echo "no such step: $step" >&2; exit 2; }
done
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
failed=0
for step in "${steps[@]}"; do
  read -r -a words < <(command_of "$step")
  begin=$SECONDS
  timeout --kill-after=45 "${words[0]}" "$python" "${words[@]:1}" >"$out/$step.log" 2>&1
  status=$?
  [ $status -eq 0 ] || failed=1
  echo "$step: exit $status after $((SECONDS - begin)) s: $(tail -n 1 "$out/$step.log" | cut -c 1-160)"
done
exit $failed
