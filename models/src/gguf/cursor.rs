//! A position in the header's bytes that cannot leave them.
//!
//! Owns bounds checks alone; what the bytes mean is the business of [`super::header`]. It never allocates.

use super::error::GgufError;

/// Reads little-endian values from the front of a byte slice.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// Offset of the next byte from the start of the file.
    pub(super) fn offset(&self) -> u64 {
        self.position as u64
    }

    /// Bytes that are left.
    pub(super) fn remaining(&self) -> u64 {
        (self.bytes.len() - self.position) as u64
    }

    /// The next `count` bytes.
    pub(super) fn take(&mut self, what: &'static str, count: u64) -> Result<&'a [u8], GgufError> {
        if count > self.remaining() {
            return Err(GgufError::TruncatedHeader {
                what,
                offset: self.offset(),
                needed: count,
                available: self.remaining(),
            });
        }
        let start = self.position;
        self.position += count as usize;
        Ok(&self.bytes[start..self.position])
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let bytes = self.take(what, N as u64)?;
        Ok(bytes.try_into().expect("take returns exactly as many bytes as were asked for"))
    }

    pub(super) fn bytes4(&mut self, what: &'static str) -> Result<[u8; 4], GgufError> {
        self.array(what)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A count of things of at least `smallest` bytes each, all of which must fit into what is left.
    pub(super) fn count(&mut self, what: &'static str, smallest: u64) -> Result<u64, GgufError> {
        let offset = self.offset();
        let count = self.u64(what)?;
        self.check_count(what, offset, count, smallest)?;
        Ok(count)
    }

    /// Refuses a count whose things cannot fit into what is left.
    pub(super) fn check_count(
        &self,
        what: &'static str,
        offset: u64,
        count: u64,
        smallest: u64,
    ) -> Result<(), GgufError> {
        let needed = u128::from(count) * u128::from(smallest);
        if needed > u128::from(self.remaining()) {
            return Err(GgufError::CountBeyondFile { what, offset, count, needed, available: self.remaining() });
        }
        Ok(())
    }

    /// A string: length, then that many bytes of UTF-8.
    pub(super) fn string(&mut self, what: &'static str) -> Result<&'a str, GgufError> {
        let length = self.count(what, 1)?;
        let offset = self.offset();
        let bytes = self.take(what, length)?;
        std::str::from_utf8(bytes).map_err(|error| GgufError::BadUtf8 {
            what,
            offset,
            bad_byte: offset + error.valid_up_to() as u64,
        })
    }
}
