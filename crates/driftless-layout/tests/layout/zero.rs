//! Megatron's distributed optimizer over whole plans, by walking over each buffer of each rank.

use crate::configs::Sizes;
use crate::cover::index;
use crate::rules::Mesh;
use driftless_layout::{RemapPlan, SenderPlan};
use driftless_types::Dtype;
use std::collections::BTreeMap;
use std::ops::Range;

/// What each tensor lies in: chunk, FP32 or not, expert or not.
type BufferKey = (String, bool, bool);

/// Checks the ranges of every rank; `bucket` is the closing size in elements.
pub(crate) fn check(plan: &RemapPlan, sizes: &Sizes, mesh: &Mesh, bucket: u64) {
    for (rank, sender) in (0..).zip(plan.senders()) {
        let mut buffers: BTreeMap<BufferKey, Vec<usize>> = BTreeMap::new();
        for (position, tensor) in sender.tensors.iter().enumerate() {
            buffers.entry(key(plan, &tensor.name)).or_default().push(position);
        }
        for ((_, _, is_expert), members) in buffers {
            let peers = peers(mesh, rank, is_expert);
            let own = peers.iter().position(|&peer| peer == rank).unwrap() as u64;
            let peers: Vec<_> = peers.iter().map(|&peer| &plan.senders()[index(peer)]).collect();
            let params: Vec<_> = members
                .iter()
                .map(|&position| (elements(&peers, position), is_shared(sizes, mesh, sender, position)))
                .collect();
            let expected = ranges(&params, peers.len() as u64, own, bucket);
            for (&position, expected) in members.iter().zip(expected) {
                let tensor = &sender.tensors[position];
                assert_eq!(tensor.range, expected, "{} of {}", tensor.name, sender.name);
            }
        }
    }
}

fn key(plan: &RemapPlan, name: &str) -> BufferKey {
    let chunk = name.split('.').next().filter(|part| part.starts_with("model")).unwrap_or("");
    let is_router = |name: &str| name.ends_with("mlp.gate.weight");
    let routers = plan.params().iter().find(|meta| is_router(meta.fqn.as_str()));
    let is_fp32 =
        name.ends_with("mlp.router.weight") && routers.is_some_and(|meta| meta.dtype == Dtype::Fp32);
    (chunk.to_owned(), is_fp32, name.contains(".experts."))
}

/// The ranks that share a buffer with `rank`, in order.
fn peers(mesh: &Mesh, rank: u64, is_expert: bool) -> Vec<u64> {
    let stage = mesh.tp * mesh.dp;
    let (first, within) = (rank / stage * stage, rank % stage);
    let step = if is_expert { mesh.etp * mesh.ep } else { mesh.tp };
    (0..stage / step).map(|peer| first + peer * step + within % step).collect()
}

/// The elements of a tensor: peers hold consecutive ranges of it.
fn elements(peers: &[&SenderPlan], position: usize) -> u64 {
    let mut end = 0;
    for range in peers.iter().map(|peer| &peer.tensors[position].range).filter(|range| !range.is_empty()) {
        assert_eq!(range.start, end, "peers share a tensor without a gap");
        end = range.end;
    }
    end
}

fn is_shared(sizes: &Sizes, mesh: &Mesh, sender: &SenderPlan, position: usize) -> bool {
    let name = &sender.tensors[position].name;
    let is_embedding = name.ends_with("word_embeddings.weight") || name.ends_with("output_layer.weight");
    sizes.tied && mesh.pp > 1 && is_embedding
}

/// What the peer `own` of `group` has of each parameter, given in registration order.
fn ranges(params: &[(u64, bool)], group: u64, own: u64, bucket: u64) -> Vec<Range<u64>> {
    let unit = (1..).map(|times| times * 128).find(|unit: &u64| unit.is_multiple_of(group)).unwrap();
    let mut places: Vec<(u64, usize)> = vec![(0, 0); params.len()];
    let mut buckets: Vec<Range<u64>> = Vec::new();
    let (mut at, mut first) = (0u64, 0);
    for position in (0..params.len()).rev() {
        let (elements, is_shared) = params[position];
        at = at.div_ceil(64) * 64;
        if is_shared && at > first {
            at = at.div_ceil(unit) * unit;
            buckets.push(first..at);
            first = at;
        }
        places[position] = (at, buckets.len());
        at += elements;
        if is_shared || at - first >= bucket {
            at = at.div_ceil(unit) * unit;
            buckets.push(first..at);
            first = at;
        }
    }
    buckets.push(first..at.div_ceil(unit) * unit);
    let owned = |(&(start, bucket), &(elements, _)): (&(u64, usize), &(u64, bool))| {
        let share = (buckets[bucket].end - buckets[bucket].start) / group;
        let bound = |peer: u64| (buckets[bucket].start + peer * share).clamp(start, start + elements) - start;
        bound(own)..bound(own + 1)
    };
    places.iter().zip(params).map(owned).collect()
}
