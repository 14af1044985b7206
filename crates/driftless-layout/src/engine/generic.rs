//! An engine that keeps the Hugging Face tensors one to one: each is cut as the model's table says.
//!
//! LY-2: shares are equal and disjoint; what pads a first dimension is outside of every box.

use super::{EngineMesh, EngineRank, RolloutLayout};
use crate::error::LayoutError;
use crate::family::generic::Split;
use crate::fit::{Axis, check_listed};
use crate::geometry::Box2;
use crate::local::LocalTensor;
use crate::model::{Model, ParamMeta};

/// The ranks of one stage.
pub(super) fn ranks(
    model: &Model,
    layout: &RolloutLayout,
    mesh: EngineMesh,
) -> Result<Vec<EngineRank>, LayoutError> {
    let text = layout.to_string();
    let tp = Axis { layout: &text, name: "tp", size: mesh.tp.into() };
    for (name, size) in [("pp", mesh.pp), ("ep", mesh.ep)] {
        if size != 1 {
            let axis = Axis { layout: &text, name, size: size.into() };
            return Err(
                axis.misfit("1 on generic tensors, whose table names no stages and no experts".into())
            );
        }
    }
    tp.must_be_positive()?;
    check_listed(tp.size, model.params().len() as u64)?;
    (0..tp.size)
        .map(|rank| {
            let tensor = |&(param, split)| share(model, model.meta(param), split, rank, tp);
            let tensors = model.generic_splits().iter().map(tensor).collect::<Result<_, _>>()?;
            Ok(EngineRank { name: format!("tp{rank}-pp0"), tensors })
        })
        .collect()
}

/// What one rank holds of one tensor.
fn share(
    model: &Model,
    meta: &ParamMeta,
    split: Split,
    rank: u64,
    tp: Axis<'_>,
) -> Result<LocalTensor, LayoutError> {
    let name = meta.fqn.to_string();
    match split {
        Split::Replicated => LocalTensor::whole(model, name, meta.id),
        Split::Rows { pad_to } => {
            let (rows, padded) = (meta.leading(), meta.leading().next_multiple_of(pad_to));
            tp.must_divide(&format!("the padded first dimension of {name}"), padded)?;
            let rows_each = padded / tp.size;
            let bound = |rank: u64| (rank * rows_each).min(rows);
            let tensor = LocalTensor::new(model, name, meta.shape_of_rows(rows_each), &[meta.id])?;
            Ok(tensor.with_rows(meta, bound(rank)..bound(rank + 1), 0))
        }
        Split::Columns => {
            tp.must_divide(&format!("the second dimension of {name}"), meta.cols())?;
            let (rows, cols) = (meta.rows(), meta.cols() / tp.size);
            let tensor = LocalTensor::new(model, name, [rows, cols], &[meta.id])?;
            Ok(tensor.with(meta.id, Box2::new(0, rows, rank * cols, cols), 0, cols))
        }
    }
}
