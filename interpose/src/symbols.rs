//! Exported functions of a mapped library, by its own hash tables.

use crate::image::Image;

const DT_HASH: usize = 4;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_INIT: usize = 12;
const DT_GNU_HASH: usize = 0x6fff_fef5;
const DT_VERSYM: usize = 0x6fff_fff0;
const SYMBOL: usize = 24;
/// A library has fewer symbols than this; a bound for broken tables.
const MOST: u32 = 1 << 20;

const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
const VERSION_HIDDEN: u16 = 0x8000;

/// A function that a library exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub address: usize,
    /// Bytes of code, 0 where the library does not say.
    pub size: usize,
    /// Its address is the choice of a resolver: there is no body to replace.
    pub indirect: bool,
}

/// The symbol tables of one library.
pub(crate) struct Symbols<'a> {
    image: &'a Image,
    strings: usize,
    table: usize,
    versions: Option<usize>,
    gnu_hash: Option<usize>,
    hash: Option<usize>,
    has_init: bool,
}

impl<'a> Symbols<'a> {
    /// Finds the tables; `None` if the library has no symbols or no hash.
    pub fn of(image: &'a Image) -> Option<Symbols<'a>> {
        let find = |tag| {
            let entry = image.dynamic().find(|&(t, _)| t == tag);
            entry.map(|(_, value)| image.absolute(value))
        };
        let symbols = Symbols {
            image,
            strings: find(DT_STRTAB)?,
            table: find(DT_SYMTAB)?,
            versions: find(DT_VERSYM),
            gnu_hash: find(DT_GNU_HASH),
            hash: find(DT_HASH),
            has_init: find(DT_INIT).is_some(),
        };
        (symbols.gnu_hash.is_some() || symbols.hash.is_some()).then_some(symbols)
    }

    /// The function of that name, its default version where it has several.
    pub fn function(&self, name: &str) -> Option<Function> {
        match (self.gnu_hash, self.hash) {
            (Some(table), _) => self.by_gnu_hash(table, name),
            (None, Some(table)) => self.by_hash(table, name),
            (None, None) => None,
        }
    }

    /// Whether the library's `_init` calls `__gmon_start__`: then its loading
    /// cannot have escaped us.
    pub fn calls_gmon_start(&self) -> bool {
        let undefined = match (self.gnu_hash, self.hash) {
            // Symbols before the first hashed one are the undefined ones.
            (Some(table), _) | (None, Some(table)) => self.u32(table, 4),
            (None, None) => None,
        };
        let count = undefined.unwrap_or(0).min(self.most());
        self.has_init && (1..count).any(|i| self.is_named(i, "__gmon_start__"))
    }

    /// A number of a table, whose address the library says.
    fn u32(&self, table: usize, offset: usize) -> Option<u32> {
        self.image.u32(table.checked_add(offset)?)
    }

    /// Symbols that there is room for.
    fn most(&self) -> u32 {
        let room = self.image.len() / SYMBOL;
        u32::try_from(room).map_or(MOST, |room| room.min(MOST))
    }

    fn by_gnu_hash(&self, table: usize, name: &str) -> Option<Function> {
        let buckets = self.image.u32(table)?;
        let first = self.u32(table, 4)?;
        let bloom = self.u32(table, 8)? as usize;
        let bucket_at = table.checked_add(16)?.checked_add(bloom * 8)?;
        let chain_at = bucket_at.checked_add(buckets as usize * 4)?;
        let hash = gnu_hash(name);
        let slot = hash.checked_rem(buckets)? as usize;
        let start = self.u32(bucket_at, slot * 4)?;
        if start < first {
            return None;
        }
        let mut hidden = None;
        for index in start..start.saturating_add(self.most()) {
            let link = self.u32(chain_at, (index - first) as usize * 4)?;
            if link | 1 == hash | 1 {
                match self.exported(index, name) {
                    Some((function, true)) => return Some(function),
                    Some((function, false)) => hidden = Some(function),
                    None => {}
                }
            }
            if link & 1 == 1 {
                break;
            }
        }
        hidden
    }

    fn by_hash(&self, table: usize, name: &str) -> Option<Function> {
        let buckets = self.image.u32(table)?;
        let count = self.u32(table, 4)?.min(self.most());
        let slot = sysv_hash(name).checked_rem(buckets)? as usize;
        let bucket_at = table.checked_add(8)?;
        let chain_at = bucket_at.checked_add(buckets as usize * 4)?;
        let mut index = self.u32(bucket_at, slot * 4)?;
        let mut hidden = None;
        // Each symbol is in one chain: a longer walk is a circle.
        for _ in 0..count {
            if index == 0 {
                break;
            }
            match self.exported(index, name) {
                Some((function, true)) => return Some(function),
                Some((function, false)) => hidden = Some(function),
                None => {}
            }
            index = self.u32(chain_at, index as usize * 4)?;
        }
        hidden
    }

    /// Symbol `index`, if it is an exported function of that name; and whether
    /// it is the default version.
    fn exported(&self, index: u32, name: &str) -> Option<(Function, bool)> {
        if !self.is_named(index, name) {
            return None;
        }
        let symbol: [u8; SYMBOL] = self.image.read(self.symbol_at(index)?)?;
        let (kind, binding) = (symbol[4] & 15, symbol[4] >> 4);
        let section = u16::from_le_bytes([symbol[6], symbol[7]]);
        let global = binding == 1 || binding == 2;
        if section == 0 || !global || !matches!(kind, STT_FUNC | STT_GNU_IFUNC) {
            return None;
        }
        let value = usize::from_le_bytes(symbol[8..16].try_into().ok()?);
        let size = usize::from_le_bytes(symbol[16..24].try_into().ok()?);
        let version = self
            .versions
            .and_then(|at| self.image.read(at.checked_add(index as usize * 2)?))
            .map_or(0, u16::from_le_bytes);
        let function = Function {
            address: self.image.place.base.checked_add(value)?,
            size,
            indirect: kind == STT_GNU_IFUNC,
        };
        Some((function, version & VERSION_HIDDEN == 0))
    }

    fn symbol_at(&self, index: u32) -> Option<usize> {
        self.table.checked_add(index as usize * SYMBOL)
    }

    fn is_named(&self, index: u32, name: &str) -> bool {
        let Some(offset) = self.symbol_at(index).and_then(|at| self.image.u32(at)) else {
            return false;
        };
        let Some(start) = self.strings.checked_add(offset as usize) else {
            return false;
        };
        let mut wanted = name.bytes().chain([0]).enumerate();
        wanted.all(|(i, byte)| {
            let at = start.checked_add(i);
            at.and_then(|at| self.image.read(at)) == Some([byte])
        })
    }
}

fn gnu_hash(name: &str) -> u32 {
    name.bytes().fold(5381, |h: u32, byte| {
        h.wrapping_mul(33).wrapping_add(u32::from(byte))
    })
}

fn sysv_hash(name: &str) -> u32 {
    name.bytes().fold(0, |h: u32, byte| {
        let h = (h << 4).wrapping_add(u32::from(byte));
        let top = h & 0xf000_0000;
        (h ^ (top >> 24)) & !top
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_as_the_abi_gives_them() {
        // The published values for these names.
        assert_eq!(gnu_hash("printf"), 0x156b_2bb8);
        assert_eq!(gnu_hash("exit"), 0x7c96_7e3f);
        assert_eq!(sysv_hash("printf"), 0x0779_05a6);
        assert_eq!(sysv_hash("exit"), 0x0006_cf04);
    }
}
