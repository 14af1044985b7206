//! Trainers and engines whose tensors have padded rows: the same bits, and nothing but them.
#![expect(clippy::unwrap_used, reason = "tests fail by panic")]

use driftless::{
    DestTensor, Detector, Failpoints, Family, Fault, LayoutClaim, Member, Node, NodeError, NodeOptions,
    ReceiverId, ReplicaId, RolloutMemory, Shape, Site, SourceBinding, SourceTensor, StateBuffer, StepMask,
    Strides, SyncHandle, TensorMemory, Trainer, TrainerMemory, Version, WordBuffer,
};
use driftless_testkit::{TensorState, TinyTrainer, tiny_plan};
use std::error::Error;
use std::time::Duration;

const ROLLOUTS: [&str; 2] = ["vllm:tp=4", "hf"];
/// What stands in the gaps: served weights never do, and masters would show at once.
const WORD_OF_GAPS: u16 = 0xdead;
const MASTER_OF_GAPS: f32 = f32::NAN;

/// By definition, where each element lies: the sum of indices times strides.
fn places(strides: &Strides) -> Vec<usize> {
    let mut places = vec![i64::try_from(strides.offset).unwrap()];
    for (&extent, &stride) in strides.shape.extents().iter().zip(&strides.strides) {
        let along = |place: i64| (0..extent).map(move |i| place + i64::try_from(i).unwrap() * stride);
        places = places.into_iter().flat_map(along).collect();
    }
    places.into_iter().map(|place| usize::try_from(place).unwrap()).collect()
}

/// Rows as wide as the pieces of the range, if it is made of such; else one row.
fn source_strides(nth: u64, tensor: &SourceTensor) -> Strides {
    let width = tensor.pieces.first().map_or(0, |piece| piece.canonical.cols);
    let is_aligned = tensor.pieces.iter().all(|p| p.canonical.cols == width && p.src_offset % width == 0);
    let shape = if width > 0 && is_aligned && tensor.elements().is_multiple_of(width) {
        vec![tensor.elements() / width, width]
    } else {
        vec![tensor.elements()]
    };
    let row_stride = shape[shape.len() - 1] + 1 + nth % 5;
    Strides::of_rows(Shape::new(shape), row_stride, nth % 3)
}

fn dest_strides(nth: u64, tensor: &DestTensor) -> Strides {
    let width = tensor.shape.extents().last().unwrap();
    Strides::of_rows(tensor.shape.clone(), width + 3 + nth % 4, 1 + nth % 7)
}

fn buffer_elements(strides: &Strides) -> usize {
    places(strides).last().map_or(0, |last| last + 1) + 2
}

/// An optimizer's memory without gaps, and the same memory with gaps, which is what the node sees.
struct Padded {
    plain: TensorState,
    binding: SourceBinding,
    places: Vec<usize>,
}

impl Padded {
    fn new(nth: u64, tensor: &SourceTensor, plain: TensorState) -> Self {
        let strides = source_strides(nth, tensor);
        let (places, elements) = (places(&strides), buffer_elements(&strides));
        let gaps = || StateBuffer::new(vec![MASTER_OF_GAPS; elements]);
        let binding = SourceBinding::new(gaps(), gaps(), gaps())
            .with_mask(StepMask::new(elements))
            .with_model(WordBuffer::new(vec![WORD_OF_GAPS; elements]))
            .with_strides(strides);
        let padded = Self { plain, binding, places };
        padded.copy();
        padded
    }

    fn copy(&self) {
        let Self { plain, binding, places } = self;
        let states = [
            (&plain.master, &binding.master),
            (&plain.exp_avg, &binding.exp_avg),
            (&plain.exp_avg_sq, &binding.exp_avg_sq),
        ];
        for (from, to) in states {
            let (from, mut to) = (from.read(), to.host().unwrap().write());
            places.iter().zip(&*from).for_each(|(&place, &value)| to[place] = value);
        }
        let mut model = binding.model.as_ref().unwrap().host().unwrap().write();
        places.iter().zip(&*plain.model.read()).for_each(|(&place, &word)| model[place] = word);
        let (mut from, mut to) = (plain.mask.host().unwrap(), binding.mask.as_ref().unwrap().host().unwrap());
        from.indices().for_each(|index| to.insert(places[index as usize]));
        from.clear();
    }

    fn gaps_are_untouched(&self) -> bool {
        let buffers = [&self.binding.master, &self.binding.exp_avg, &self.binding.exp_avg_sq];
        buffers.iter().all(|buffer| {
            let gaps = buffer.view().unwrap().iter().filter(|value| value.is_nan()).count();
            gaps == buffer.len() - self.places.len()
        })
    }
}

struct PaddedFleet {
    node: Node,
    trainer: Trainer,
    policy: TinyTrainer,
    sources: Vec<Padded>,
    /// Per replica, per rank, per tensor.
    live: Vec<Vec<Vec<TensorMemory>>>,
    version: u64,
}

impl PaddedFleet {
    async fn start(trainer: &str, options: NodeOptions) -> Self {
        let layouts: Vec<_> = ROLLOUTS.iter().map(|text| text.parse().unwrap()).collect();
        let plan = tiny_plan(&trainer.parse().unwrap(), &layouts).unwrap();
        let policy = TinyTrainer::new(&plan, 7);
        let mut ranks = Vec::new();
        let mut sources = Vec::new();
        for (sender, memory) in plan.senders().iter().zip(policy.memory()) {
            let tensors = (0..).zip(&sender.tensors).zip(memory);
            let rank: Vec<_> =
                tensors.map(|((nth, tensor), state)| Padded::new(nth, tensor, state)).collect();
            ranks.push(rank.iter().map(|padded| padded.binding.clone()).collect());
            sources.extend(rank);
        }
        let live: Vec<Vec<Vec<TensorMemory>>> = plan
            .replicas()
            .iter()
            .map(|replica| {
                let words = replica.receivers.iter().map(|r| (r, policy.expected_words(r)));
                words.map(|(r, words)| (0..).zip(&r.tensors).zip(words).map(padded).collect()).collect()
            })
            .collect();
        let node = Node::start(plan, options).await.unwrap();
        let memory = TrainerMemory { ranks, steps_taken: 0, version: Version(0), family: Family::Torch };
        let trainer = node.attach_trainer(memory).await.unwrap();
        for (id, ranks) in (0..).map(ReplicaId).zip(&live) {
            let memory = RolloutMemory::of_tensors(ranks.clone(), LayoutClaim::Proven);
            node.attach_rollout(id, memory, Version(0)).await.unwrap();
        }
        Self { node, trainer, policy, sources, live, version: 0 }
    }

    async fn step(&mut self) -> SyncHandle {
        let guard = self.trainer.step_begin().await;
        let params = self.policy.step();
        self.sources.iter().for_each(Padded::copy);
        self.version += 1;
        self.trainer.step_done(guard, Version(self.version), params).unwrap()
    }

    async fn step_unpublished(&mut self) {
        let guard = self.trainer.step_begin().await;
        let params = self.policy.step();
        self.sources.iter().for_each(Padded::copy);
        self.trainer.step_taken(guard, params);
    }

    /// Every element is the trainer's, and every gap is what it was.
    fn check(&self) {
        for (replica, ranks) in self.node.plan().replicas().iter().zip(&self.live) {
            for (receiver, tensors) in replica.receivers.iter().zip(ranks) {
                let expected = self.policy.expected_words(receiver);
                for ((tensor, live), expected) in receiver.tensors.iter().zip(tensors).zip(expected) {
                    let found = live.words.view().unwrap();
                    let mut whole = vec![WORD_OF_GAPS; found.len()];
                    let places = places(live.strides.as_ref().unwrap());
                    places.into_iter().zip(expected).for_each(|(place, word)| whole[place] = word);
                    assert!(*found == whole, "{}: {} differs", receiver.name, tensor.name);
                }
            }
        }
        assert!(self.sources.iter().all(Padded::gaps_are_untouched));
    }
}

fn padded(((nth, tensor), words): ((u64, &DestTensor), Vec<u16>)) -> TensorMemory {
    let strides = dest_strides(nth, tensor);
    let mut padded = vec![WORD_OF_GAPS; buffer_elements(&strides)];
    places(&strides).into_iter().zip(words).for_each(|(place, word)| padded[place] = word);
    TensorMemory::from(WordBuffer::new(padded)).with_strides(strides)
}

/// Versions with and without unpublished steps between them.
async fn stays_identical(trainer: &str, detector: Detector) {
    let options = NodeOptions { detector, ..NodeOptions::default() };
    let mut fleet = PaddedFleet::start(trainer, options).await;
    for version in 1..=4 {
        if version == 3 {
            fleet.step_unpublished().await;
        }
        let outcome = fleet.step().await.committed().await;
        assert!(outcome.is_committed_everywhere(), "{trainer} {detector:?}: {:?}", outcome.replicas);
        let report = &outcome.report;
        assert_eq!((report.repaired, report.dense.len()), (0, 0), "{trainer} {detector:?}");
        assert!(0 < report.changed && report.sent < report.elements / 5, "{report:?}");
        fleet.check();
    }
    fleet.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ly5_padded_rows_stay_identical_and_gaps_untouched() {
    for trainer in ["hf", "fsdp:world=3", "megatron:tp=2,pp=2,zero=0", "megatron:tp=2,dp=2"] {
        stays_identical(trainer, Detector::Inversion).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ly5_every_detector_reads_padded_rows() {
    for detector in [Detector::Snapshot, Detector::PreCopy, Detector::InStep] {
        stays_identical("fsdp:world=2", detector).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ly5_padded_rows_are_rolled_back_and_repaired() {
    let failpoints = Failpoints::default();
    let deadline = Duration::from_secs(20);
    let options =
        NodeOptions { failpoints: failpoints.clone(), version_deadline: deadline, ..NodeOptions::default() };
    let mut fleet = PaddedFleet::start("fsdp:world=2", options).await;
    // A scatter that is cut short: the undo log knows where rows are.
    let member = Member::Receiver(ReceiverId { replica: ReplicaId(0), rank: 1 });
    failpoints.arm(Site::ReceiverScatters, Some(member), Fault::Panic, 3);
    assert!(fleet.step().await.committed().await.is_committed_everywhere());
    assert_eq!(failpoints.pending(), 0);
    fleet.check();
    // Damage in the elements of one tensor: hashed anew, and sent whole from the padded masters.
    let damaged = fleet.live[0][2][0].clone();
    let places = places(damaged.strides.as_ref().unwrap());
    places.into_iter().for_each(|place| damaged.words.host().unwrap().write()[place] ^= 0x0040);
    let outcome = fleet.step().await.committed().await;
    assert!(outcome.is_committed_everywhere() && outcome.report.repaired > 0, "{:?}", outcome.report);
    fleet.check();
    fleet.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strides_of_another_kind_are_refused_by_name() {
    let plan = tiny_plan(&"hf".parse().unwrap(), &["hf".parse().unwrap()]).unwrap();
    let tensor = plan.replicas()[0].receivers[0].tensors.iter().position(|t| t.shape.extents().len() == 2);
    let (nth, policy) = (tensor.unwrap(), TinyTrainer::new(&plan, 7));
    let name = plan.replicas()[0].receivers[0].tensors[nth].name.clone();
    let [rows, cols] = *plan.replicas()[0].receivers[0].tensors[nth].shape.extents() else { unreachable!() };
    let words = policy.expected_words(&plan.replicas()[0].receivers[0]);
    let node = Node::start(plan, NodeOptions::default()).await.unwrap();
    let transposed = vec![1, i64::try_from(rows).unwrap()];
    let strides = Strides { shape: Shape::new([rows, cols]), strides: transposed, offset: 0 };
    let mut ranks = vec![words.into_iter().map(WordBuffer::new).map(TensorMemory::from).collect::<Vec<_>>()];
    ranks[0][nth].strides = Some(strides.clone());
    let refused = node
        .attach_rollout(ReplicaId(0), RolloutMemory::of_tensors(ranks, LayoutClaim::Trusted), Version(0))
        .await;
    names(refused.err().unwrap(), &name);
    let state = |state: TensorState| SourceBinding::new(state.master, state.exp_avg, state.exp_avg_sq);
    let mut rank: Vec<_> = policy.memory().remove(0).into_iter().map(state).collect();
    rank[nth].strides = Some(strides);
    let memory =
        TrainerMemory { ranks: vec![rank], steps_taken: 0, version: Version(0), family: Family::Torch };
    names(node.attach_trainer(memory).await.err().unwrap(), &name);
}

fn names(error: NodeError, tensor: &str) {
    let cause = error.source().unwrap().to_string();
    assert!(cause.contains(tensor) && cause.contains("stride"), "{error}: {cause}");
}
