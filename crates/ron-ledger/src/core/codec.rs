//! Encoding of leaves and state images: minimal varints, length-prefixed texts, minimal amounts.

use ron_proto::ValueError;

/// Why bytes do not decode, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at}: {why}")]
pub struct DecodeError {
    /// Offset of the first byte that was not understood.
    pub at: usize,
    pub why: String,
}

#[derive(Debug, Default)]
pub(crate) struct Out(pub(crate) Vec<u8>);

impl Out {
    pub(crate) fn byte(&mut self, b: u8) {
        self.0.push(b);
    }

    pub(crate) fn flag(&mut self, flag: bool) {
        self.byte(u8::from(flag));
    }

    /// LEB128, always in its shortest form.
    pub(crate) fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push((n as u8 & 0x7f) | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    pub(crate) fn bytes(&mut self, b: &[u8]) {
        self.0.extend_from_slice(b);
    }

    pub(crate) fn text(&mut self, s: &str) {
        self.varint(s.len() as u64);
        self.bytes(s.as_bytes());
    }

    /// A length byte, then big-endian without leading zeros; zero is the length byte alone.
    pub(crate) fn amount(&mut self, n: u128) {
        let all = n.to_be_bytes();
        let skip = (n.leading_zeros() / 8) as usize;
        self.byte((16 - skip) as u8);
        self.bytes(&all[skip..]);
    }

    /// 0, or 1 and the value.
    pub(crate) fn option<T>(&mut self, v: Option<T>, put: impl FnOnce(&mut Self, T)) {
        match v {
            None => self.byte(0),
            Some(v) => {
                self.byte(1);
                put(self, v);
            }
        }
    }
}

/// Reads from a slice; every error has its offset.
#[derive(Debug)]
pub(crate) struct In<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> In<'a> {
    pub(crate) const fn new(all: &'a [u8]) -> Self {
        Self { all, at: 0 }
    }

    pub(crate) const fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        &self.all[self.at..]
    }

    pub(crate) fn fail<T>(&self, why: impl Into<String>) -> Result<T, DecodeError> {
        Err(DecodeError {
            at: self.at,
            why: why.into(),
        })
    }

    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        match self.rest().get(..n) {
            Some(b) => {
                self.at += n;
                Ok(b)
            }
            None => self.fail("it ends too early"),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => self.fail("a flag is 0 or 1"),
        }
    }

    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let b = self.byte()?;
            let bits = u64::from(b & 0x7f);
            // The tenth byte carries bit 63 alone.
            if shift == 63 && bits > 1 {
                return self.fail("the number has more than 64 bits");
            }
            n |= bits << shift;
            if b & 0x80 == 0 {
                return if b == 0 && shift > 0 {
                    self.fail("the number is not in its shortest form")
                } else {
                    Ok(n)
                };
            }
        }
        self.fail("the number has more than 64 bits")
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, DecodeError> {
        let n = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
        let at = self.at;
        std::str::from_utf8(self.take(n)?).map_err(|_| DecodeError {
            at,
            why: "the text is not UTF-8".to_owned(),
        })
    }

    pub(crate) fn value<T: std::str::FromStr<Err = ValueError>>(
        &mut self,
    ) -> Result<T, DecodeError> {
        let at = self.at;
        self.text()?.parse().map_err(|e: ValueError| DecodeError {
            at,
            why: e.to_string(),
        })
    }

    pub(crate) fn amount(&mut self) -> Result<u128, DecodeError> {
        let n = self.byte()? as usize;
        if n > 16 {
            return self.fail("the amount has more than 128 bits");
        }
        let b = self.take(n)?;
        if b.first() == Some(&0) {
            return self.fail("the amount has leading zeros");
        }
        Ok(b.iter().fold(0, |sum, b| (sum << 8) | u128::from(*b)))
    }

    pub(crate) fn option<T>(
        &mut self,
        get: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        match self.byte()? {
            0 => Ok(None),
            1 => get(self).map(Some),
            _ => self.fail("an option byte is 0 or 1"),
        }
    }

    pub(crate) fn end(&self) -> Result<(), DecodeError> {
        if self.at == self.all.len() {
            Ok(())
        } else {
            self.fail("bytes follow the end")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_only_their_shortest_form_is_read() {
        for n in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut o = Out::default();
            o.varint(n);
            o.amount(u128::from(n) << 64);
            let mut i = In::new(&o.0);
            assert_eq!(
                (i.varint().unwrap(), i.amount().unwrap()),
                (n, u128::from(n) << 64)
            );
            i.end().unwrap();
        }
        for bad in [
            &[0x80, 0x00][..],
            &[0x80],
            &[0xff; 10],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2],
        ] {
            assert!(In::new(bad).varint().is_err(), "{bad:?}");
        }
        for bad in [&[1, 0][..], &[17], &[2, 1]] {
            assert!(In::new(bad).amount().is_err(), "{bad:?}");
        }
    }
}
