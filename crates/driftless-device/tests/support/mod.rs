//! Data for the tests of this crate: seeded, and full of values that casts and rules trip over.
#![allow(dead_code, reason = "every test file uses some of it")]
#![allow(clippy::cast_possible_truncation, reason = "test data are small")]

use driftless_device::{ChangeSource, Changes, Detected, PieceRule};
use driftless_layout::{Box2, ParamMeta, Piece, SourceTensor};
use driftless_numerics::{Cast, Family, GroupStep, Hyperparameters, Rule, StepClass};
use driftless_types::{Dtype, Fqn, ParamId, RunId, Shape};

/// The run of every test.
pub(crate) const RUN: RunId = RunId([7; 16]);

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

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A number in [-1, 1).
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn word(&mut self) -> u16 {
        (self.next() >> 48) as u16
    }
}

/// A trainer's state of `n` elements: mostly weights of a usual size, every hundredth one a special value.
pub(crate) struct State {
    pub(crate) master: Vec<f32>,
    pub(crate) exp_avg: Vec<f32>,
    pub(crate) exp_avg_sq: Vec<f32>,
}

impl State {
    pub(crate) fn random(n: usize, rng: &mut Rng) -> Self {
        // 1.00390625 lies between two BF16 values: the casts differ on it.
        let specials = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, f32::MAX, 1.003_906_2];
        let special = |rng: &mut Rng| specials[rng.below(specials.len() as u64) as usize];
        let master =
            (0..n).map(|_| if rng.below(100) == 0 { special(rng) } else { rng.unit() * 0.05 }).collect();
        let exp_avg: Vec<f32> =
            (0..n).map(|_| if rng.below(100) == 0 { 0.0 } else { rng.unit() * 1e-4 }).collect();
        let exp_avg_sq = exp_avg.iter().map(|m| m * m * 1.5 + 1e-12).collect();
        Self { master, exp_avg, exp_avg_sq }
    }
}

/// The rule of a usual step: about one element in ten is not certified.
pub(crate) fn usual_rule(family: Family) -> Rule {
    let hyper = Hyperparameters { lr: 1e-5, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
    Rule::new(&Fqn::from("w"), family, &GroupStep::new(10, hyper)).expect("a usual step is invertible")
}

/// A parameter of `rows` x `cols`.
pub(crate) fn param(id: u32, rows: u64, cols: u64, dtype: Dtype) -> ParamMeta {
    ParamMeta { id: ParamId(id), fqn: Fqn::from(format!("p{id}")), shape: Shape::new([rows, cols]), dtype }
}

/// The canonical flat index of row-major element `k` of a box.
pub(crate) fn canonical(area: &Box2, param_cols: u64, k: u64) -> u64 {
    (area.row + k / area.cols) * param_cols + area.col + k % area.cols
}

/// Words of a master, served by `cast`.
pub(crate) fn served(dtype: Dtype, cast: Cast, x: f32) -> Vec<u16> {
    match dtype {
        Dtype::Bf16 => vec![cast.bits(x)],
        Dtype::Fp32 => vec![(x.to_bits() & 0xffff) as u16, (x.to_bits() >> 16) as u16],
    }
}

/// The parameters of [`tensor`].
pub(crate) fn params() -> Vec<ParamMeta> {
    vec![
        param(0, 40, 96, Dtype::Bf16),
        param(1, 1, 5000, Dtype::Bf16),
        param(2, 9, 33, Dtype::Fp32),
        param(3, 700, 3, Dtype::Bf16),
    ]
}

fn piece(src_offset: u64, param: u32, canonical: Box2, cuts: [&[u64]; 2], first_cell: u32) -> Piece {
    let [row_cuts, col_cuts] = cuts.map(<[u64]>::to_vec);
    Piece { src_offset, param: ParamId(param), canonical, row_cuts, col_cuts, first_cell }
}

/// Every shape of piece: partial rows, full width with row cuts, narrow with cuts both ways, a vector, FP32, thin
/// rows, and gaps of padding between them.
pub(crate) fn tensor() -> SourceTensor {
    let pieces = vec![
        piece(5, 0, Box2::new(3, 1, 90, 6), [&[], &[]], 10),
        piece(11, 0, Box2::new(4, 20, 0, 96), [&[7, 12], &[]], 11),
        piece(1931, 0, Box2::new(24, 1, 0, 17), [&[], &[4]], 14),
        piece(2000, 0, Box2::new(25, 15, 10, 70), [&[3], &[1, 33, 69]], 16),
        piece(3050, 1, Box2::new(0, 1, 100, 4000), [&[], &[1500]], 24),
        piece(7050, 2, Box2::new(0, 9, 0, 33), [&[2], &[]], 26),
        piece(7400, 3, Box2::new(0, 700, 1, 2), [&[350], &[1]], 28),
    ];
    SourceTensor { name: "all".into(), range: 100..8950, pieces }
}

/// Its state, always the same.
pub(crate) fn masters(tensor: &SourceTensor) -> State {
    State::random(tensor.elements() as usize, &mut Rng(11))
}

/// What a pass on the host has listed.
pub(crate) fn listed(found: &Detected) -> &Changes {
    found.changes.on_host().expect("a list on the host")
}

/// How far each of them has moved.
pub(crate) fn classes(found: &Detected) -> &[StepClass] {
    listed(found).classes.as_deref().expect("classes that were asked for")
}

/// The optimizer's own state as a source.
pub(crate) fn inversion<'a>(state: &'a State, rules: &'a [PieceRule]) -> ChangeSource<'a> {
    ChangeSource::Inversion {
        master: (&state.master).into(),
        exp_avg: (&state.exp_avg).into(),
        exp_avg_sq: (&state.exp_avg_sq).into(),
        rules,
    }
}
