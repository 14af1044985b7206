//! Synthetic gradients with the structure of real ones: a scale per row and column, a few shared directions, a heavy
//! tail, and embedding rows whose tokens did not occur.

use super::noise::Noise;
use driftless_layout::ParamMeta;
use driftless_types::index_of;

/// Directions that all rows of a parameter share in one step.
const RANK: usize = 4;
/// The typical size of a gradient: far above eps, far below one.
const TYPICAL: f32 = 1e-5;

/// What one parameter's gradient is made of.
#[derive(Clone, Copy)]
enum Stream {
    Weight,
    RowScale,
    ColumnScale,
    RowFactor,
    ColumnFactor,
    Element,
    Occurrence,
}

fn stream(noise: Noise, param: &ParamMeta, stream: Stream) -> Noise {
    noise.stream(u64::from(param.id.0)).stream(stream as u64)
}

/// The initial master weight of an element, whichever rank holds it.
pub(super) fn initial_weight(noise: Noise, param: &ParamMeta, row: u64, col: u64) -> f32 {
    let z = stream(noise, param, Stream::Weight).normal(row * param.cols() + col);
    if is_norm(param) {
        return 0.01f32.mul_add(z, 1.0);
    }
    let row_scale = (0.25 * stream(noise, param, Stream::RowScale).normal(row)).exp();
    0.02 * row_scale * z
}

/// Whether a parameter is a norm: it starts at one and does not decay.
pub(super) fn is_norm(param: &ParamMeta) -> bool {
    param.fqn.as_str().ends_with("norm.weight")
}

/// The gradient of one parameter in one step, as a function of the element alone.
pub(super) struct Gradient {
    rows: Vec<RowPart>,
    cols: Vec<ColumnPart>,
    elements: Noise,
    param_cols: u64,
}

struct RowPart {
    scale: f32,
    factors: [f32; RANK],
}

struct ColumnPart {
    scale: f32,
    factors: [f32; RANK],
}

impl Gradient {
    /// The parts of the gradient of `param` in the 1-based step `step`.
    pub(super) fn new(noise: Noise, param: &ParamMeta, step: u64) -> Self {
        let now = noise.stream(step);
        let row = |row| RowPart {
            scale: row_scale(noise, param, row) * occurrence(now, param, row),
            factors: factors(stream(now, param, Stream::RowFactor), row),
        };
        let column_scales = stream(noise, param, Stream::ColumnScale);
        let column_factors = stream(now, param, Stream::ColumnFactor);
        let col = |col| ColumnPart {
            scale: (0.7 * column_scales.normal(col)).exp(),
            factors: factors(column_factors, col),
        };
        Self {
            rows: (0..param.rows()).map(row).collect(),
            cols: (0..param.cols()).map(col).collect(),
            elements: stream(now, param, Stream::Element),
            param_cols: param.cols(),
        }
    }

    /// The gradient of the element at (`row`, `col`).
    pub(super) fn at(&self, row: u64, col: u64) -> f32 {
        let (row_part, column_part) = (&self.rows[index_of(row)], &self.cols[index_of(col)]);
        let shared: f32 = row_part.factors.iter().zip(&column_part.factors).map(|(a, b)| a * b).sum();
        let own = self.elements.heavy_tailed(row * self.param_cols + col);
        row_part.scale * column_part.scale * (0.5 * shared + own)
    }
}

fn row_scale(noise: Noise, param: &ParamMeta, row: u64) -> f32 {
    TYPICAL * stream(noise, param, Stream::RowScale).normal(row).exp()
}

/// Most tokens do not occur in a batch: their embedding rows have no gradient at all.
fn occurrence(now: Noise, param: &ParamMeta, row: u64) -> f32 {
    let occurs = stream(now, param, Stream::Occurrence).uniform(row) < 0.4;
    f32::from(u8::from(occurs || !param.fqn.as_str().ends_with("embed_tokens.weight")))
}

fn factors(noise: Noise, index: u64) -> [f32; RANK] {
    std::array::from_fn(|k| noise.normal(index * RANK as u64 + k as u64))
}
