//! Which vector instructions the kernels use, found at run time.
//!
//! Owns the list and its detection. The binary is compiled for the baseline of its architecture; every kernel exists
//! once per entry of [`Isa`] and is entered through [`dispatch`].

use super::lanes::{Lanes, scalar::Scalar};
use crate::DeviceError;

/// An instruction set the kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust, any architecture. Results differ from the other two in the last bits, where these fuse a
    /// multiplication and an addition.
    Scalar,
    /// AVX2, FMA and F16C: bit for bit the results of [`Isa::Avx512Vnni`].
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512Vnni,
}

impl Isa {
    /// Every instruction set, slowest first.
    pub const ALL: [Isa; 3] = [Self::Scalar, Self::Avx2, Self::Avx512Vnni];

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Those this processor has, slowest first.
    pub fn available() -> impl Iterator<Item = Isa> {
        Self::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// The name people know it by.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "AVX2",
            Self::Avx512Vnni => "AVX-512 VNNI",
        }
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// An instruction set that this processor was seen to have; the proof that [`dispatch`] needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PresentIsa(Isa);

impl PresentIsa {
    /// The fastest one.
    pub fn best() -> Self {
        Self(Isa::available().last().expect("scalar is always available"))
    }

    /// This one, if the processor has it.
    pub fn new(isa: Isa) -> Result<Self, DeviceError> {
        if isa.is_available() {
            return Ok(Self(isa));
        }
        let available = Isa::available().map(Isa::name).collect::<Vec<_>>().join(", ");
        Err(DeviceError::MissingInstructions { wanted: isa.name(), available })
    }

    pub fn get(self) -> Isa {
        self.0
    }
}

/// A computation written once over [`Lanes`] and compiled for each instruction set.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;

    /// The computation. Implementations, and the generic functions they call, are `#[inline(always)]`, so that they
    /// become part of the entry function that enables the instructions.
    ///
    /// # Safety
    /// The processor has the instructions of `S`.
    unsafe fn run<S: Lanes>(self) -> Self::Output;
}

/// Runs `kernel` with the instructions of `isa`.
pub(crate) fn dispatch<K: Kernel>(isa: PresentIsa, kernel: K) -> K::Output {
    match isa.0 {
        // SAFETY: scalar lanes need no particular instructions.
        Isa::Scalar => unsafe { kernel.run::<Scalar>() },
        // SAFETY: a `PresentIsa` is only made of instructions the processor has.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { super::lanes::avx2::enter(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => unsafe { super::lanes::avx512::enter(kernel) },
        #[cfg(not(target_arch = "x86_64"))]
        other => unreachable!("{other} was never detected on this architecture"),
    }
}
