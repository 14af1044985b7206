//! One AdamW step in the orders of operations that trainers use.

use super::Element;
use crate::family::Family;
use crate::params::GroupStep;
use crate::scalars::single;

/// An order of operations, with the roundings it implies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `PyTorch` on the CPU: every operation rounds.
    Torch,
    /// `PyTorch` foreach on CUDA: the last multiplication and addition are contracted.
    TorchContracted,
    /// `PyTorch` capturable: FP32 powers, the sign and size of the step inside the denominator.
    TorchCapturable,
    /// `PyTorch` fused on CUDA: decay in double precision, contracted or not by a bit of the noise.
    TorchFusedCuda,
    /// Apex and `TransformerEngine`, without contraction.
    Apex,
    /// The same with contraction.
    ApexContracted,
    /// The same with fast math: flushed subnormals, approximate division and root.
    ApexFastMath,
    /// `DeepSpeed` on the CPU: everything contracted.
    DeepspeedCpu,
    /// bitsandbytes: decay after the update, its factor contracted or not by a bit of the noise.
    Bitsandbytes,
}

impl Order {
    /// Every order.
    pub const ALL: [Self; 9] = [
        Self::Torch,
        Self::TorchContracted,
        Self::TorchCapturable,
        Self::TorchFusedCuda,
        Self::Apex,
        Self::ApexContracted,
        Self::ApexFastMath,
        Self::DeepspeedCpu,
        Self::Bitsandbytes,
    ];

    /// The orders that a family stands for.
    #[must_use]
    pub const fn of(family: Family) -> &'static [Self] {
        match family {
            Family::Agnostic => &Self::ALL,
            Family::Torch => &[Self::Torch, Self::TorchContracted, Self::TorchCapturable],
            Family::TorchFusedCuda => &[Self::TorchFusedCuda],
            Family::Apex | Family::TeRemainder => &[Self::Apex, Self::ApexContracted, Self::ApexFastMath],
            Family::DeepspeedCpu => &[Self::DeepspeedCpu],
            Family::Bitsandbytes => &[Self::Bitsandbytes],
        }
    }

    /// Noise worth trying on special values: at rest, and at both ends of approximate instructions.
    #[must_use]
    pub const fn telling_noise(self) -> &'static [u32] {
        match self {
            Self::TorchFusedCuda | Self::ApexFastMath | Self::Bitsandbytes => &[0x0203_0202, 0x0406_0403, 0],
            _ => &[0],
        }
    }
}

/// A step of one order with its scalars, as that trainer derives them.
#[derive(Clone, Debug)]
pub struct Forward {
    order: Order,
    lr: f32,
    weight_decay: f32,
    eps: f32,
    eps_double: f64,
    /// `lr * weight_decay` in double precision.
    loss: f64,
    /// `1 - lr * weight_decay`, rounded once.
    keep: f32,
    /// `lr / bc1` and `sqrt(bc2)` from double precision.
    exact: [f32; 2],
    /// `bc1` and `bc2` from FP32 betas and double powers.
    single_betas: [f32; 2],
    /// `bc1` and `bc2` from FP32 betas and FP32 powers.
    single_powers: [f32; 2],
    /// `bc1` and `bc2` from an FP32 running product.
    running: [f32; 2],
}

impl Forward {
    /// The scalars of a step.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counters of tests are small")]
    pub fn new(order: Order, now: &GroupStep) -> Self {
        let hyper = now.decoupled();
        let betas = [hyper.beta1, hyper.beta2];
        let step = now.step as f64;
        let [bc1, bc2] = betas.map(|beta| 1.0 - beta.powf(step));
        let running = |beta: f64| 1.0 - (0..now.step).fold(1.0f32, |product, _| product * single(beta));
        Self {
            order,
            lr: single(hyper.lr),
            weight_decay: single(hyper.weight_decay),
            eps: single(hyper.eps),
            eps_double: hyper.eps,
            loss: hyper.lr * hyper.weight_decay,
            keep: single(1.0 - hyper.lr * hyper.weight_decay),
            exact: [single(hyper.lr / bc1), single(bc2.sqrt())],
            single_betas: betas.map(|beta| single(1.0 - f64::from(single(beta)).powf(step))),
            single_powers: betas.map(|beta| 1.0 - single(beta).powf(single(step))),
            running: betas.map(running),
        }
    }

    /// The order of this step.
    #[must_use]
    pub const fn order(&self) -> Order {
        self.order
    }

    /// The master after the step.
    #[must_use]
    pub fn step(&self, element: Element, noise: u32) -> f32 {
        let Element { before: y, exp_avg: m, exp_avg_sq: v } = element;
        match self.order {
            Order::Torch | Order::TorchContracted => self.torch(y, m, v),
            Order::TorchCapturable => self.torch_capturable(y, m, v),
            Order::TorchFusedCuda => self.torch_fused_cuda(y, m, v, noise),
            Order::Apex | Order::ApexContracted => self.apex(y, m, v),
            Order::ApexFastMath => self.apex_fast_math(y, m, v, noise),
            Order::DeepspeedCpu => self.deepspeed_cpu(y, m, v),
            Order::Bitsandbytes => self.bitsandbytes(y, m, v, noise),
        }
    }

    fn decayed(&self, y: f32) -> f32 {
        if self.loss_is_absent() { y } else { y * self.keep }
    }

    const fn loss_is_absent(&self) -> bool {
        self.weight_decay == 0.0
    }

    fn torch(&self, y: f32, m: f32, v: f32) -> f32 {
        let [step_size, root] = self.exact;
        let denominator = v.sqrt() / root + self.eps;
        match self.order {
            Order::Torch => self.decayed(y) + (-step_size * m) / denominator,
            _ => (-step_size).mul_add(m / denominator, self.decayed(y)),
        }
    }

    fn torch_capturable(&self, y: f32, m: f32, v: f32) -> f32 {
        let [bc1, bc2] = self.single_powers;
        let negative_step = -(self.lr / bc1);
        let denominator = v.sqrt() / (bc2.sqrt() * negative_step) + self.eps / negative_step;
        self.decayed(y) + m / denominator
    }

    fn torch_fused_cuda(&self, y: f32, m: f32, v: f32, noise: u32) -> f32 {
        let [step_size, root] = self.exact;
        let wide = f64::from(y);
        let contracted =
            if noise & 1 == 0 { (-self.loss).mul_add(wide, wide) } else { wide - self.loss * wide };
        let decayed = if self.loss_is_absent() { y } else { single(contracted) };
        let denominator = single(f64::from(v.sqrt() / root) + self.eps_double);
        decayed - step_size * m / denominator
    }

    fn apex(&self, y: f32, m: f32, v: f32) -> f32 {
        let [bc1, bc2] = self.single_betas;
        let ratio = (m / bc1) / ((v / bc2).sqrt() + self.eps);
        match self.order {
            Order::Apex => y - self.lr * (ratio + self.weight_decay * y),
            _ => (-self.lr).mul_add(self.weight_decay.mul_add(y, ratio), y),
        }
    }

    fn apex_fast_math(&self, y: f32, m: f32, v: f32, noise: u32) -> f32 {
        let [bc1, bc2] = self.single_betas;
        let [first, second, third, fourth] = noise.to_le_bytes();
        let (y, m, v) = (flushed(y), flushed(m), flushed(v));
        let first_moment = flushed(off_by(m / bc1, first, 2));
        let second_moment = flushed(off_by(v / bc2, second, 2));
        let denominator = off_by(second_moment.sqrt(), third, 3) + flushed(self.eps);
        let ratio = flushed(off_by(first_moment / denominator, fourth, 2));
        if noise & 1 == 0 {
            let update = flushed(self.weight_decay.mul_add(y, ratio));
            return flushed((-self.lr).mul_add(update, y));
        }
        let update = flushed(ratio + flushed(self.weight_decay * y));
        flushed(y - flushed(self.lr * update))
    }

    fn deepspeed_cpu(&self, y: f32, m: f32, v: f32) -> f32 {
        let [bc1, bc2] = self.running;
        let denominator = v.sqrt().mul_add(1.0 / bc2.sqrt(), self.eps);
        let decayed = if self.loss_is_absent() { y } else { y.mul_add(-(self.lr * self.weight_decay), y) };
        (m / denominator).mul_add(-self.lr / bc1, decayed)
    }

    fn bitsandbytes(&self, y: f32, m: f32, v: f32, noise: u32) -> f32 {
        let [bc1, bc2] = self.single_betas;
        let root = bc2.sqrt();
        let moved = (-self.lr * root / bc1).mul_add(m / (v.sqrt() + self.eps * root), y);
        if self.loss_is_absent() {
            return moved;
        }
        let rounded = 1.0 - self.lr * self.weight_decay;
        let contracted = (-self.lr).mul_add(self.weight_decay, 1.0);
        moved * if noise & 1 == 0 { contracted } else { rounded }
    }
}

/// Subnormals become zeros of their sign.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

/// A result off by up to `reach` floats, chosen by the noise: an approximate instruction.
fn off_by(x: f32, noise: u8, reach: u8) -> f32 {
    if !x.is_normal() {
        return x;
    }
    let offset = i32::from(noise % (2 * reach + 1)) - i32::from(reach);
    f32::from_bits(x.to_bits().wrapping_add_signed(offset))
}
