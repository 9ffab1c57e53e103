//! Memory of weights, pages, activations and scratch: zeroed, aligned, made once at load.
//!
//! Large regions are anonymous mappings that ask for huge pages, which a weight stream of gigabytes needs to keep the
//! address translation out of the way; small ones come from the allocator. A region counts the bytes asked for; the
//! operating system rounds a mapping up to its page.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::DeviceError;

/// Alignment of every region: a cache line and the widest register.
const ALIGNMENT: usize = 64;

/// From this size on, a region is a mapping of its own.
const MAPPED_BYTES: usize = 1 << 20;

/// Types for which all bytes zero is a value and which need no drop.
///
/// # Safety
/// Zeroed memory is a valid `Self`, `Self` is `Copy` in spirit (no drop glue), and its alignment is at most 64.
pub(crate) unsafe trait Plain: Copy + Send + Sync {}
// SAFETY: integers and floats are valid for all bit patterns.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}

/// An owned, fixed, zero-initialised slice.
pub(crate) struct Region<T: Plain> {
    start: NonNull<T>,
    len: usize,
    mapped: bool,
}

// SAFETY: a region owns its memory and hands it out by the borrow rules.
unsafe impl<T: Plain> Send for Region<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Region<T> {}

impl<T: Plain> Region<T> {
    /// A region of `len` zeroed elements; `what` names it in the error.
    pub fn new(what: &'static str, len: usize) -> Result<Self, DeviceError> {
        let failed = |bytes| DeviceError::OutOfMemory { what, bytes };
        let bytes = len.checked_mul(size_of::<T>()).ok_or(failed(usize::MAX))?;
        if bytes == 0 {
            return Ok(Self { start: NonNull::dangling(), len, mapped: false });
        }
        // Refuses what no slice may be as large as.
        let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| failed(bytes))?;
        if bytes >= MAPPED_BYTES
            && let Some(start) = map(bytes)
        {
            return Ok(Self { start: start.cast(), len, mapped: true });
        }
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(failed(bytes))?;
        Ok(Self { start: start.cast(), len, mapped: false })
    }

    /// The region's elements as the items of a parallel run share them. Writing through it is up to the rules of
    /// [`Shared`], whatever borrow it was made from.
    pub fn shared(&self) -> Shared<T> {
        Shared(self.start.as_ptr())
    }

    /// Bytes asked for.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

/// An anonymous zeroed mapping, or `None` where the system has none to give.
#[cfg(unix)]
fn map(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches nothing that exists.
    let start = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
        libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    // A kernel without transparent huge pages answers with an error that changes nothing.
    #[cfg(target_os = "linux")]
    // SAFETY: the range was mapped just above.
    unsafe {
        libc::madvise(start, bytes, libc::MADV_HUGEPAGE);
    }
    NonNull::new(start.cast())
}

#[cfg(not(unix))]
fn map(_bytes: usize) -> Option<NonNull<u8>> {
    None
}

impl<T: Plain> Drop for Region<T> {
    fn drop(&mut self) {
        let bytes = self.bytes();
        if bytes == 0 {
            return;
        }
        if self.mapped {
            #[cfg(unix)]
            // SAFETY: `map` returned this range with this length.
            unsafe {
                libc::munmap(self.start.as_ptr().cast(), bytes);
            }
        } else {
            let layout = Layout::from_size_align(bytes, ALIGNMENT).expect("the layout was valid when it was allocated");
            // SAFETY: `alloc_zeroed` returned this block for this layout.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

impl<T: Plain> Deref for Region<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `start` is valid for `len` initialised elements for the life of the region.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Region<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> std::fmt::Debug for Region<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({} bytes)", self.bytes())
    }
}

/// A pointer that the items of one parallel run share, each writing a part of its own.
///
/// The kernels that use it state which part belongs to which item.
pub(crate) struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: the pointer is only dereferenced in unsafe code that states why its part is not shared.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub fn new(slice: &mut [T]) -> Self {
        Self(slice.as_mut_ptr())
    }

    /// The pointer to element `i`.
    ///
    /// # Safety
    /// `i` is at most the length of the slice this was made from.
    pub unsafe fn at(self, i: usize) -> *mut T {
        // SAFETY: by the contract the result stays within the slice or one past it.
        unsafe { self.0.add(i) }
    }

    /// Elements `start .. start + len` as a slice of one item alone.
    ///
    /// # Safety
    /// The range lies in the slice this was made from, and no other item touches it.
    pub unsafe fn part<'a>(self, start: usize, len: usize) -> &'a mut [T] {
        // SAFETY: by the contract.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_zeroed_aligned_and_counts_its_bytes() {
        for len in [0, 1, 1000, MAPPED_BYTES] {
            let mut region = Region::<f32>::new("test", len).unwrap();
            assert_eq!(region.bytes(), 4 * len);
            assert!(region.iter().all(|v| *v == 0.0));
            assert!(len == 0 || region.as_ptr().addr().is_multiple_of(ALIGNMENT));
            region.fill(1.0);
        }
    }

    #[test]
    fn a_region_that_cannot_be_had_is_an_error_with_its_size() {
        for len in [1 << 60, usize::MAX] {
            let error = Region::<f32>::new("pages", len).unwrap_err();
            assert!(matches!(error, DeviceError::OutOfMemory { what: "pages", .. }), "{error}");
        }
    }
}
