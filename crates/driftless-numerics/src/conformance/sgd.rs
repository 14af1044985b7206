//! SGD with momentum in the orders of operations that trainers use.

use super::{Element, ForwardOrder};
use crate::params::GroupStep;
use crate::scalars::single;

/// The last operation of SGD: weight decay, dampening and momentum are all in the buffer before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SgdOrder {
    /// `y - lr*m`, both operations rounded.
    Plain,
    /// The same, contracted.
    Contracted,
    /// The same, where subnormals are flushed.
    Flushing,
}

impl ForwardOrder for SgdOrder {
    fn name(&self) -> String {
        format!("Sgd{self:?}")
    }

    fn prepare(&self, step: &GroupStep) -> Box<dyn Fn(Element, u32) -> f32> {
        let (order, lr) = (*self, single(step.hyper.lr));
        Box::new(move |Element { before: y, exp_avg: m, .. }, _| match order {
            Self::Plain => y - lr * m,
            Self::Contracted => (-lr).mul_add(m, y),
            Self::Flushing => {
                let flushed = |x: f32| if x.is_subnormal() { 0.0f32.copysign(x) } else { x };
                flushed(flushed(y) - flushed(lr * flushed(m)))
            }
        })
    }
}
