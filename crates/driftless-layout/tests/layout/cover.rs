//! Every element through the whole plan, against the closed-form rules: LY-1 and LY-2 exhaustively.

use crate::configs::{Case, ExpertSizes, Sizes};
use crate::rules::{self, Element, Engine, Mesh};
use crate::zero;
use driftless_layout::{
    Box2, EngineMesh, ExpertPlacement, Fragment, GateUpOrder, MegatronMesh, MegatronOptimizer, ParamMeta,
    Piece, RemapPlan, ReplicaPlan, RolloutEngine, SenderPlan, SourceTensor, TrainerKind, ZeroGroups,
    ZeroStage,
};
use std::collections::{BTreeMap, BTreeSet};

/// The number of an element among all elements of the model.
struct Numbering {
    firsts: BTreeMap<String, (u64, u64)>,
    of_params: Vec<u64>,
    elements: usize,
}

/// What stands where no canonical element does.
const PADDING: u64 = u64::MAX;

pub(crate) fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

impl Numbering {
    fn new(params: &[ParamMeta]) -> Self {
        let mut numbering = Self { firsts: BTreeMap::new(), of_params: Vec::new(), elements: 0 };
        for meta in params {
            let first = numbering.elements as u64;
            numbering.firsts.insert(meta.fqn.to_string(), (first, meta.cols()));
            numbering.of_params.push(first);
            numbering.elements += index(meta.elements());
        }
        numbering
    }

    fn of(&self, (fqn, row, col): &Element) -> u64 {
        let (first, cols) = self.firsts[fqn];
        assert!(*col < cols);
        first + row * cols + col
    }

    /// The numbers of a box's elements, row-major.
    fn of_box(&self, params: &[ParamMeta], param: driftless_types::ParamId, area: Box2) -> Vec<u64> {
        let (first, cols) = (self.of_params[param.0 as usize], params[param.0 as usize].cols());
        let row = |row| (area.col..area.col_end()).map(move |col| first + row * cols + col);
        (area.row..area.row_end()).flat_map(row).collect()
    }
}

fn mesh(sizes: &Sizes, mesh: &MegatronMesh) -> Mesh {
    let [tp, pp, vpp, dp, ep, etp] = [mesh.tp, mesh.pp, mesh.vpp, mesh.dp, mesh.ep, mesh.etp].map(u64::from);
    let parts = match &mesh.layers {
        Some(layers) => layers.iter().copied().map(u64::from).collect(),
        None => vec![sizes.layers / (pp * vpp); index(pp * vpp)],
    };
    Mesh { tp, pp, dp, ep, etp, parts }
}

/// What a trainer's tensor holds, by the trainer's rule.
fn trainer_memory(
    sizes: &Sizes,
    case: &Case,
    numbering: &Numbering,
    rank: u64,
    tensor: &SourceTensor,
) -> Vec<u64> {
    // Ceiling chunks of the first axis, each flattened.
    let chunk = |shards: u64, at: u64| {
        let shape = case.model.param(&tensor.name).unwrap().shape.extents().to_vec();
        let width: u64 = shape[1..].iter().product();
        Some(numbering.firsts[&tensor.name].0 + rank % shards * shape[0].div_ceil(shards) * width + at)
    };
    let number = |at: u64| match &case.trainer.kind {
        TrainerKind::Hf | TrainerKind::DeepSpeed { .. } => Some(numbering.firsts[&tensor.name].0 + at),
        TrainerKind::Fsdp { world } => chunk((*world).into(), at),
        TrainerKind::Hsdp { world, replicas } => chunk((world / replicas).into(), at),
        TrainerKind::Megatron(of) => rules::megatron(sizes, &mesh(sizes, of), rank, &tensor.name, at)
            .map(|element| numbering.of(&element)),
    };
    tensor.range.clone().map(|at| number(at).unwrap_or(PADDING)).collect()
}

/// The sender of every element of one parameter, where the trainer's rule says it without a buffer to walk over.
fn owners(sizes: &Sizes, case: &Case, meta: &ParamMeta) -> Option<Vec<u64>> {
    let (elements, leading) = (meta.elements(), meta.shape.extents()[0]);
    let owner: Box<dyn Fn(u64) -> u64> = match &case.trainer.kind {
        TrainerKind::Hf => Box::new(|_| 0),
        TrainerKind::Fsdp { world } => {
            let (width, rows) = (elements / leading, leading.div_ceil((*world).into()));
            Box::new(move |flat| flat / width / rows)
        }
        TrainerKind::Hsdp { world, replicas } => {
            let (width, rows) = (elements / leading, leading.div_ceil((world / replicas).into()));
            Box::new(move |flat| flat / width / rows)
        }
        TrainerKind::DeepSpeed { world, stage: ZeroStage::Three, .. } => {
            let share = elements.div_ceil((*world).into());
            Box::new(move |flat| flat / share)
        }
        TrainerKind::DeepSpeed { world, groups, .. } => {
            let world = u64::from(*world);
            let one_axis = |meta: &ParamMeta| meta.shape.extents().len() == 1;
            let metas = rules::registration(sizes).into_iter().map(|name| case.model.param(&name).unwrap());
            let is_peer = |peer: &&ParamMeta| *groups == ZeroGroups::One || one_axis(peer) == one_axis(meta);
            let group: Vec<_> = metas.filter(is_peer).collect();
            let total: u64 = group.iter().map(|peer| peer.elements()).sum();
            let before = group.iter().take_while(|peer| peer.id != meta.id).map(|peer| peer.elements());
            let (first, share) = (before.sum::<u64>(), total.div_ceil(2 * world) * 2);
            Box::new(move |flat| (first + flat) / share)
        }
        TrainerKind::Megatron(_) => return None,
    };
    Some((0..elements).map(owner).collect())
}

/// What a fragment carries, read through its source runs.
fn gathered(fragment: &Fragment, memory: &[Vec<u64>]) -> Vec<u64> {
    let mut values = Vec::new();
    for run in &fragment.sources {
        assert_eq!(run.box_row * fragment.canonical.cols, values.len() as u64, "runs cover the box in order");
        for row in 0..run.rows {
            let start = index(run.src_offset + row * run.src_row_stride);
            values.extend(&memory[run.tensor as usize][start..start + index(fragment.canonical.cols)]);
        }
    }
    values
}

/// What an engine's ranks hold, by the engine's rule: tensor name to values, per rank.
fn engine_memory(
    sizes: &Sizes,
    replica: &ReplicaPlan,
    params: &[ParamMeta],
    numbering: &Numbering,
) -> Vec<BTreeMap<String, Vec<u64>>> {
    let blank = |receiver: &driftless_layout::ReceiverPlan| {
        let tensor = |tensor: &driftless_layout::DestTensor| {
            (tensor.name.clone(), vec![PADDING; index(tensor.shape.elements().unwrap())])
        };
        receiver.tensors.iter().map(tensor).collect::<BTreeMap<_, _>>()
    };
    let mut memory: Vec<_> = replica.receivers.iter().map(blank).collect();
    let engine = engine_rule(sizes, replica.layout.engine);
    for meta in params {
        for flat in 0..meta.elements() {
            let element = (meta.fqn.to_string(), flat / meta.cols(), flat % meta.cols());
            let places = match engine {
                None => vec![(0, element.0.clone(), flat)],
                Some(engine) => rules::engine(sizes, engine, &element),
            };
            for (rank, tensor, at) in places {
                memory[index(rank)].get_mut(&tensor).expect(&tensor)[index(at)] = numbering.of(&element);
            }
        }
    }
    memory
}

fn engine_rule(sizes: &Sizes, engine: RolloutEngine) -> Option<Engine> {
    let (name, EngineMesh { tp, pp, ep, gate_up }, round_robin) = match engine {
        RolloutEngine::Hf => return None,
        RolloutEngine::Vllm { mesh, placement } => ("vllm", mesh, placement == ExpertPlacement::RoundRobin),
        RolloutEngine::Sglang { mesh } => ("sglang", mesh, false),
    };
    // On a dense model expert parallelism is ignored.
    let ep = if sizes.experts.is_some() { ep } else { 1 };
    let swapped = gate_up == GateUpOrder::Swapped;
    Some(Engine { name, tp: tp.into(), pp: pp.into(), ep: ep.into(), round_robin, swapped })
}

/// LY-1 by counting: every element is in exactly one piece, and the piece says truly which element it is.
fn check_owners(
    plan: &RemapPlan,
    sizes: &Sizes,
    case: &Case,
    numbering: &Numbering,
    memories: &[Vec<Vec<u64>>],
) {
    let mut owners = vec![0; numbering.elements];
    let mut owner_of = vec![PADDING; numbering.elements];
    for (sender, memory) in plan.senders().iter().zip(memories) {
        for (tensor, held) in sender.tensors.iter().zip(memory) {
            let mut end = 0;
            for piece in &tensor.pieces {
                assert!(piece.src_offset >= end, "pieces ascend");
                end = piece.src_offset + piece.canonical.elements();
                let numbers = numbering.of_box(plan.params(), piece.param, piece.canonical);
                assert_eq!(held[index(piece.src_offset)..index(end)], numbers);
                for number in numbers {
                    owners[index(number)] += 1;
                    owner_of[index(number)] = sender.id.0.into();
                }
            }
            assert!(end <= tensor.elements());
        }
        if let TrainerKind::Megatron(MegatronMesh { optimizer: MegatronOptimizer::Replicated, .. }) =
            case.trainer.kind
        {
            check_replicated(sender);
        }
    }
    assert!(owners.iter().all(|&count| count == 1), "LY-1");
    for meta in plan.params() {
        let first = index(numbering.of_params[meta.id.0 as usize]);
        if let Some(expected) = self::owners(sizes, case, meta) {
            assert_eq!(owner_of[first..first + expected.len()], expected, "owners of {}", meta.fqn);
        }
    }
}

/// Without the distributed optimizer the first data parallel rank owns all of a dense tensor, and the others nothing.
fn check_replicated(sender: &SenderPlan) {
    let is_first = sender.name.ends_with("-dp0");
    let dense = sender.tensors.iter().filter(|tensor| !tensor.name.contains(".experts."));
    assert!(dense.into_iter().all(|tensor| (tensor.elements() > 0) == is_first), "{}", sender.name);
    assert!(sender.tensors.iter().all(|tensor| tensor.range.start == 0));
}

/// LY-2: all fragments into all receivers, each place written once, against what the engine's rule says.
fn check_receivers(plan: &RemapPlan, sizes: &Sizes, numbering: &Numbering, memories: &[Vec<Vec<u64>>]) {
    for replica in plan.replicas() {
        let expected = engine_memory(sizes, replica, plan.params(), numbering);
        let mut counted_first = vec![0; numbering.elements];
        for (receiver, expected) in replica.receivers.iter().zip(&expected) {
            let mut held: Vec<Vec<u64>> =
                receiver.tensors.iter().map(|tensor| vec![PADDING; expected[&tensor.name].len()]).collect();
            for &sender in &receiver.senders {
                let memory = &memories[sender.0 as usize];
                for fragment in &plan.edge(sender, receiver.id).unwrap().fragments {
                    let values = gathered(fragment, memory);
                    let numbers = numbering.of_box(plan.params(), fragment.param, fragment.canonical);
                    assert_eq!(values, numbers, "a fragment carries the elements that it names");
                    if fragment.first_in_replica {
                        numbers.into_iter().for_each(|number| counted_first[index(number)] += 1);
                    }
                    let tensor = &mut held[fragment.dst_tensor as usize];
                    for (position, value) in (0..).zip(values) {
                        let (row, col) =
                            (position / fragment.canonical.cols, position % fragment.canonical.cols);
                        let at = index(fragment.dst_offset + row * fragment.dst_row_stride + col);
                        assert_eq!(tensor[at], PADDING, "LY-2: {at} of {} written twice", receiver.name);
                        tensor[at] = value;
                    }
                }
            }
            for (tensor, held) in receiver.tensors.iter().zip(held) {
                assert_eq!(held, expected[&tensor.name], "LY-2: {} of {}", tensor.name, receiver.name);
            }
        }
        assert!(counted_first.iter().all(|&count| count == 1), "each element is counted at its first holder");
    }
}

/// The cells of a sender as sets of elements, and each fragment as the disjoint union of its cells.
fn check_cells(plan: &RemapPlan, numbering: &Numbering) {
    for sender in plan.senders() {
        let cells = cells_of(plan, sender, numbering);
        for fragment in sender.edges.iter().flat_map(|edge| &edge.fragments) {
            let numbers = numbering.of_box(plan.params(), fragment.param, fragment.canonical);
            let mut of_cells: Vec<u64> =
                fragment.cells.iter().flat_map(|&cell| cells[cell as usize].iter().copied()).collect();
            of_cells.sort_unstable();
            assert_eq!(of_cells, numbers, "cells of fragment {}", fragment.index);
        }
    }
}

fn cells_of(plan: &RemapPlan, sender: &SenderPlan, numbering: &Numbering) -> Vec<BTreeSet<u64>> {
    let mut cells = vec![BTreeSet::new(); sender.cells as usize];
    for piece in sender.tensors.iter().flat_map(|tensor| &tensor.pieces) {
        for (position, number) in (0..).zip(numbering.of_box(plan.params(), piece.param, piece.canonical)) {
            cells[cell_at(piece, position / piece.canonical.cols, position % piece.canonical.cols)]
                .insert(number);
        }
    }
    assert!(cells.iter().all(|cell| !cell.is_empty()), "every number is that of a cell");
    cells
}

/// The cell of the element at (row, col) of a piece, by the documented formula.
fn cell_at(piece: &Piece, row: u64, col: u64) -> usize {
    let row_band = piece.row_cuts.iter().filter(|&&cut| cut <= row).count();
    let col_band = piece.col_cuts.iter().filter(|&&cut| cut <= col).count();
    piece.first_cell as usize + row_band * (piece.col_cuts.len() + 1) + col_band
}

/// Fragments are numbered in order, and no two of an edge could have been one.
fn check_fragments(plan: &RemapPlan) {
    let mut next = 0;
    for sender in plan.senders() {
        assert!(sender.edges.is_sorted_by(|a, b| a.receiver < b.receiver));
        for edge in &sender.edges {
            let order =
                |a: &Fragment, b: &Fragment| (a.dst_tensor, a.dst_offset) < (b.dst_tensor, b.dst_offset);
            assert!(edge.fragments.is_sorted_by(order));
            let mut tops = BTreeMap::new();
            for fragment in &edge.fragments {
                assert_eq!(fragment.index, next);
                next += 1;
                let area = fragment.canonical;
                let top = (fragment.dst_tensor, fragment.param, area.col, area.cols, area.row);
                tops.insert(top, fragment.dst_offset);
            }
            for fragment in &edge.fragments {
                let area = fragment.canonical;
                let below = (fragment.dst_tensor, fragment.param, area.col, area.cols, area.row_end());
                let end = fragment.dst_offset + area.rows * fragment.dst_row_stride;
                assert_ne!(tops.get(&below), Some(&end), "fragment {} goes on below", fragment.index);
            }
        }
    }
    assert_eq!(next, plan.fragment_count());
}

/// All that must hold of a plan of a model small enough to look at every element.
pub(crate) fn check(sizes: &Sizes, case: &Case) {
    let plan = case.plan();
    let numbering = Numbering::new(plan.params());
    let memories: Vec<Vec<Vec<u64>>> = (0..)
        .zip(plan.senders())
        .map(|(rank, sender)| {
            sender.tensors.iter().map(|held| trainer_memory(sizes, case, &numbering, rank, held)).collect()
        })
        .collect();
    check_owners(&plan, sizes, case, &numbering, &memories);
    check_receivers(&plan, sizes, &numbering, &memories);
    if let TrainerKind::Megatron(of) = &case.trainer.kind
        && let MegatronOptimizer::Distributed { bucket_elements } = of.optimizer
    {
        let never = u64::MAX;
        let bucket = bucket_elements.map_or(40_000_000, |bucket| if bucket == 0 { never } else { bucket });
        zero::check(&plan, sizes, &mesh(sizes, of), bucket);
    }
    check_cells(&plan, &numbering);
    check_fragments(&plan);
}

const TRAINERS: [&str; 6] = [
    "hf",
    "megatron:tp=2,pp=2,dp=2",
    "megatron:tp=2,dp=3",
    "megatron:tp=4",
    "megatron:tp=8,dp=2",
    "megatron:pp=4,dp=5",
];
const ROLLOUTS: [&[&str]; 7] = [
    &["hf"],
    &["vllm:tp=1"],
    &["vllm:tp=2"],
    &["vllm:tp=4"],
    &["vllm:tp=8"],
    &["sglang:tp=2,ep=2"],
    &["vllm:tp=4", "hf"],
];

fn check_all(sizes: &Sizes, trainers: &[&str], rollouts: &[&[&str]]) {
    for trainer in trainers {
        for rollouts in rollouts {
            check(sizes, &Case::new(sizes, trainer, rollouts));
        }
    }
}

#[test]
fn ly1_ly2_dense_models_arrive_element_by_element() {
    check_all(&Sizes::dense(), &TRAINERS, &ROLLOUTS);
}

#[test]
fn ly1_ly2_tied_embeddings_have_one_owner_and_one_storage() {
    let sizes = Sizes { tied: true, ..Sizes::dense() };
    check_all(&sizes, &TRAINERS, &[&["hf", "vllm:tp=2"], &["sglang:tp=8"]]);
}

#[test]
fn ly1_ly2_experts_arrive_element_by_element() {
    let trainers = [&TRAINERS[..4], &["megatron:tp=2,ep=4,dp=4", "megatron:tp=2,pp=2,dp=2,ep=4"]].concat();
    let more: [&[&str]; 2] = [&["sglang:tp=8,ep=2", "sglang:tp=8,ep=8"], &["sglang:tp=4,ep=2,router=fp32"]];
    check_all(&Sizes::moe(), &trainers, &[&ROLLOUTS[..], &more].concat());
}

#[test]
fn ly1_ly2_expert_layers_alternate_with_dense_ones() {
    let experts = ExpertSizes { count: 8, intermediate: 8, sparse_step: 2, dense_layers: vec![3] };
    let sizes = Sizes { experts: Some(experts), ..Sizes::dense() };
    check_all(&sizes, &["hf", "megatron:tp=2,pp=2,dp=2,ep=4"], &[&["vllm:tp=2", "sglang:tp=4,ep=2"]]);
}

#[test]
fn ly1_ly2_uneven_stages_and_chunks_arrive_element_by_element() {
    let trainers = [
        "megatron:vpp=2",
        "megatron:pp=2,vpp=2",
        "megatron:tp=2,pp=2,dp=2,layers=1+3",
        "megatron:pp=2,dp=3,layers=0+4,bucket=500",
        "megatron:pp=2,vpp=2,dp=2,layers=1+0+2+1,bucket=0",
    ];
    let rollouts: [&[&str]; 3] =
        [&["vllm:tp=2,pp=3"], &["sglang:tp=2,pp=3", "hf"], &["sglang:pp=4", "vllm:tp=8,pp=2"]];
    for tied in [false, true] {
        check_all(&Sizes { tied, ..Sizes::dense() }, &trainers, &rollouts);
    }
    check_all(&Sizes { layers: 7, tied: true, ..Sizes::dense() }, &["hf"], &[&["vllm:pp=4", "sglang:pp=5"]]);
}

#[test]
fn ly1_ly2_expert_tensor_parallelism_arrives_element_by_element() {
    let trainers = [
        "megatron:tp=2,dp=2,etp=2",
        "megatron:tp=2,dp=2,ep=2,etp=2",
        "megatron:dp=8,ep=2,etp=4,pp=2",
        "megatron:tp=2,dp=4,ep=2,etp=2,zero=0",
        "megatron:tp=4,dp=4,ep=4,etp=2,vpp=2,bucket=300,router=fp32",
    ];
    check_all(&Sizes::moe(), &trainers, &[&["vllm:tp=4,ep=4", "sglang:tp=8,ep=2"]]);
}

#[test]
fn ly1_ly2_experts_in_every_placement_and_order_arrive_element_by_element() {
    let rollouts: [&[&str]; 5] = [
        &["vllm:tp=4,ep=4", "vllm:tp=4,ep=4,placement=round-robin"],
        &["vllm:tp=2,w13=swapped", "sglang:tp=4,ep=2,w13=swapped"],
        &["vllm:tp=8,ep=8,w13=swapped,placement=round-robin,router=fp32"],
        &["vllm:tp=2,pp=3,ep=2", "sglang:tp=4,pp=2,ep=4"],
        &["vllm:tp=1,ep=1,placement=round-robin"],
    ];
    check_all(&Sizes::moe(), &["hf", "megatron:tp=2,dp=2,ep=4"], &rollouts);
    // Seven experts on four ranks, five on four: the first ranks have one more.
    for count in [7, 5] {
        let experts = ExpertSizes { count, intermediate: 8, sparse_step: 1, dense_layers: Vec::new() };
        let sizes = Sizes { experts: Some(experts), layers: 1, ..Sizes::dense() };
        check_all(&sizes, &["hf", "fsdp:world=3"], &rollouts[..1]);
    }
}

#[test]
fn ly1_ly2_data_parallel_trainers_arrive_element_by_element() {
    // More ranks than some parameters have rows: the last shards are empty.
    let trainers = [
        "megatron:tp=2,dp=2,zero=0",
        "megatron:tp=4,dp=3",
        "fsdp",
        "fsdp:world=5",
        "fsdp:world=24",
        "hsdp:world=6,replicas=2",
        "hsdp:world=3,replicas=3",
        "deepspeed:world=3",
        "deepspeed:world=4,stage=2,groups=2",
        "deepspeed:world=3,stage=3",
        "deepspeed:world=30,stage=3",
    ];
    let rollouts: [&[&str]; 2] = [&["hf", "vllm:tp=8"], &["sglang:tp=2,pp=2"]];
    check_all(&Sizes::dense(), &trainers, &rollouts);
    check_all(&Sizes { tied: true, ..Sizes::moe() }, &trainers, &rollouts);
}

#[test]
fn ly1_ly2_every_family_arrives_element_by_element() {
    for family in ["llama", "qwen2"] {
        let sizes = Sizes { family, ..Sizes::dense() };
        let trainers = [&TRAINERS[..5], &["fsdp:world=7", "deepspeed:world=3,groups=2"]].concat();
        check_all(&sizes, &trainers, &[&["hf", "vllm:tp=8"], &["vllm:tp=1,pp=3"], &["sglang:tp=2"]]);
    }
}

#[test]
fn zero_length_ranges_are_listed_and_own_nothing() {
    let plan = Case::new(&Sizes::dense(), "megatron:tp=2,dp=3", &["hf"]).plan();
    let tensors: Vec<_> = plan.senders().iter().flat_map(|sender| &sender.tensors).collect();
    let empty: Vec<_> = tensors.iter().filter(|tensor| tensor.elements() == 0).collect();
    assert!(!empty.is_empty());
    assert!(empty.iter().all(|tensor| tensor.pieces.is_empty()));
    let counts: BTreeSet<_> = plan.senders().iter().map(|sender| sender.tensors.len()).collect();
    assert_eq!(counts.len(), 1, "ranks of one stage list the same tensors");
}
