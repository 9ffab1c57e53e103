//! Activation rows and parameter vectors in host memory.

use super::memory::{Region, Shared};
use crate::{DeviceError, RowBuffer};

/// Activations `[rows, width]`, row-major without gaps, capacity fixed.
#[derive(Debug)]
pub struct CpuBuffer {
    width: usize,
    rows: usize,
    max_rows: usize,
    values: Region<f32>,
}

impl CpuBuffer {
    pub(crate) fn new(width: usize, max_rows: usize) -> Result<Self, DeviceError> {
        // An impossible product is an impossible allocation.
        let len = width.saturating_mul(max_rows);
        Ok(Self { width, rows: 0, max_rows, values: Region::new("an activation buffer", len)? })
    }

    /// The rows in use.
    pub fn values(&self) -> &[f32] {
        &self.values[..self.rows * self.width]
    }

    /// The rows in use.
    pub fn values_mut(&mut self) -> &mut [f32] {
        let len = self.rows * self.width;
        &mut self.values[..len]
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.values.bytes()
    }

    /// The values of row `row`.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values()[row * self.width..][..self.width]
    }

    /// The rows in use, for the items of a parallel run.
    pub(crate) fn shared(&mut self) -> Shared<f32> {
        // SAFETY: the borrow is exclusive.
        unsafe { self.as_shared() }
    }

    /// As [`CpuBuffer::shared`], through a shared borrow.
    ///
    /// # Safety
    /// The caller has exclusive use of the values for as long as it uses the result.
    pub(crate) unsafe fn as_shared(&self) -> Shared<f32> {
        self.values.shared()
    }
}

impl RowBuffer for CpuBuffer {
    fn width(&self) -> usize {
        self.width
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn set_rows(&mut self, rows: usize) {
        assert!(rows <= self.max_rows, "{rows} rows in a buffer of at most {}", self.max_rows);
        self.rows = rows;
    }
}

/// A vector of f32 parameters.
#[derive(Debug)]
pub struct CpuVector(Region<f32>);

impl CpuVector {
    pub(crate) fn new(values: &[f32]) -> Result<Self, DeviceError> {
        let mut region = Region::new("a parameter vector", values.len())?;
        region.copy_from_slice(values);
        Ok(Self(region))
    }

    /// The parameters.
    pub fn values(&self) -> &[f32] {
        &self.0
    }
}
