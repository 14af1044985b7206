//! Tensors and states to work on.

use crate::Checked;
use driftless_codec::{Expected, FramedSection, SectionStart};
use driftless_device::cuda::CudaDevice;
use driftless_device::{Buffer, ChangeList, Device, DeviceBuffer, DeviceError, Element, Elements, PieceRule};
use driftless_layout::{Box2, DestBox, DestTensor, Fragment, ParamMeta, Piece, SourceRun, SourceTensor};
use driftless_numerics::{Family, GroupStep, Hyperparameters, NotInvertible, Optimizer, Rule};
use driftless_types::{Dtype, Fqn, ParamId, RunId, Shape, Version};
use std::sync::atomic::AtomicBool;

/// The run of every check.
pub(crate) const RUN: RunId = RunId([9; 16]);
/// Nobody cancels.
pub(crate) static RUNNING: AtomicBool = AtomicBool::new(false);
/// The width of every tensor here.
pub(crate) const COLS: u64 = 4096;

/// A small generator (splitmix64), the same on every machine.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    #[expect(clippy::cast_precision_loss, reason = "24 bits are exact")]
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// A trainer's state of so many elements, of usual sizes.
pub(crate) struct State {
    pub(crate) master: Vec<f32>,
    pub(crate) exp_avg: Vec<f32>,
    pub(crate) exp_avg_sq: Vec<f32>,
}

impl State {
    pub(crate) fn usual(elements: usize, seed: u64) -> Self {
        let mut rng = Rng(seed);
        let master = (0..elements).map(|_| 0.03 * rng.unit()).collect();
        let exp_avg: Vec<f32> = (0..elements).map(|_| 1e-5 * rng.unit()).collect();
        let exp_avg_sq = (0..elements).map(|_| 1e-9 * (1.0 + rng.unit().abs())).collect();
        Self { master, exp_avg, exp_avg_sq }
    }

    /// A step of AdamW, as PyTorch makes it: gives the bits that change.
    pub(crate) fn step(&mut self) {
        let hyper = hyper();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "scalars are computed in double and rounded once"
        )]
        let [keep, size, root] = [
            1.0 - hyper.lr * hyper.weight_decay,
            hyper.lr / (1.0 - hyper.beta1.powi(STEP)),
            (1.0 - hyper.beta2.powi(STEP)).sqrt(),
        ]
        .map(|scalar| scalar as f32);
        for ((x, m), v) in self.master.iter_mut().zip(&self.exp_avg).zip(&self.exp_avg_sq) {
            *x = *x * keep - size * m / (v.sqrt() / root + 1e-8);
        }
    }
}

const STEP: i32 = 100;

fn hyper() -> Hyperparameters {
    Hyperparameters { lr: 1e-6, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 }
}

/// The rule of that step.
pub(crate) fn rule(family: Family) -> Result<PieceRule, NotInvertible> {
    rule_of(Optimizer::AdamW, family)
}

/// The rule of such a step of another optimizer.
pub(crate) fn rule_of(optimizer: Optimizer, family: Family) -> Result<PieceRule, NotInvertible> {
    let step = GroupStep::new(u64::from(STEP.unsigned_abs()), hyper()).with_optimizer(optimizer);
    Ok(PieceRule::Rule(Rule::new(&Fqn::from("w"), family, &step)?))
}

/// A parameter of `rows` rows, the tensor that holds it, and the fragment that moves it whole.
pub(crate) struct Whole {
    pub(crate) params: Vec<ParamMeta>,
    pub(crate) tensor: SourceTensor,
    pub(crate) fragment: Fragment,
    pub(crate) dest: DestTensor,
}

impl Whole {
    pub(crate) fn new(id: u32, rows: u64) -> Self {
        let canonical = Box2::new(0, rows, 0, COLS);
        let piece = Piece {
            src_offset: 0,
            param: ParamId(id),
            canonical,
            row_cuts: vec![],
            col_cuts: vec![],
            first_cell: 0,
        };
        let param = |id| ParamMeta {
            id: ParamId(id),
            fqn: Fqn::from(format!("p{id}")),
            shape: Shape::new([rows, COLS]),
            dtype: Dtype::Bf16,
        };
        let run = SourceRun { tensor: 0, src_offset: 0, src_row_stride: COLS, box_row: 0, rows };
        let fragment = Fragment {
            index: id,
            param: ParamId(id),
            dtype: Dtype::Bf16,
            canonical,
            dst_tensor: 0,
            dst_offset: 0,
            dst_row_stride: COLS,
            sources: vec![run],
            cells: vec![0],
            first_in_replica: true,
        };
        let place = DestBox { param: ParamId(id), canonical, dst_offset: 0, dst_row_stride: COLS };
        let (name, shape) = (format!("p{id}"), Shape::new([rows, COLS]));
        Self {
            params: (0..=id).map(param).collect(),
            tensor: SourceTensor { name: name.clone(), range: 0..rows * COLS, pieces: vec![piece] },
            fragment,
            dest: DestTensor { name, shape, dtype: Dtype::Bf16, boxes: vec![place] },
        }
    }
}

/// A copy on the GPU.
pub(crate) fn there<T: Element>(gpu: &CudaDevice, elements: &[T]) -> Result<DeviceBuffer<T>, DeviceError> {
    let buffer = gpu.uninitialized(elements.len())?;
    Buffer::from(buffer.clone()).write(elements)?;
    Ok(buffer)
}

/// It, lent.
pub(crate) fn lend<T: Element>(buffer: &DeviceBuffer<T>) -> Elements<'_, T> {
    Elements::Device(buffer.memory())
}

/// The changes of a fragment as they are sent and arrive: encoded on the GPU, in a section whose frame was checked.
pub(crate) fn sent(gpu: &CudaDevice, changes: &[ChangeList], fragment: &Fragment) -> Checked<FramedSection> {
    let packed = gpu.pack(changes, &[fragment])?.pop().ok_or("a fragment is lost")?;
    let (dtype, elements) = (fragment.dtype, fragment.elements());
    let version = Version(2);
    let mut bytes = Vec::new();
    packed.encode(&SectionStart::new(fragment.index, dtype, elements, version), &mut bytes);
    let expected = Expected { fragment: fragment.index, dtype, elements, version };
    Ok(FramedSection::parse(&mut bytes.into(), &expected)?)
}
