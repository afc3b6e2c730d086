//! One cubin, ready to answer where an instruction comes from. Pure: no files, no threads.

use std::sync::Arc;

use super::image::{CodeSection, FunctionSymbol, Image, NotACubin};
use super::lines::Lines;

/// A function as a PC sample names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionName<'a> {
    /// Mangled.
    pub name: &'a [u8],
    /// `name` is only the beginning of the name.
    pub cut: bool,
    /// Index of its symbol in the cubin; believed only where the name agrees.
    pub index: u32,
}

/// Where a function lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot<'a> {
    /// Its symbol; `None`: only a section is named after it.
    pub function: Option<&'a FunctionSymbol>,
    /// Section of code.
    pub section: u32,
    /// Where it begins in the section.
    pub start: u64,
    /// Bytes of the section from there on.
    pub size: u64,
}

/// Why a line is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NoLine {
    /// The cubin was built without line information.
    NoLineInfo,
    /// The cubin has no function of that name.
    NoFunction,
    /// The function ends before that offset.
    Outside,
    /// No row of the line table tells of that instruction: the compiler made it for no line.
    NoRow,
}

/// A source line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// Path as the compiler was given it, or with its folder before it.
    pub file: Arc<str>,
    /// From 1.
    pub line: u32,
}

/// A cubin taken apart.
#[derive(Clone, Debug)]
pub struct Cubin {
    sm: Option<u32>,
    functions: Vec<FunctionSymbol>,
    by_name: Vec<u32>,
    code: Vec<CodeSection>,
    lines: Lines,
}

impl Cubin {
    /// Takes it apart. Work and memory are bounded by the number of bytes, whatever they say.
    pub fn parse(bytes: &[u8]) -> Result<Self, NotACubin> {
        let image = Image::read(bytes)?;
        let mut by_name: Vec<u32> = (0..image.functions.len() as u32).collect();
        by_name.sort_by(|a, b| {
            let name = |i: &u32| &image.functions[*i as usize].name;
            name(a).cmp(name(b))
        });
        Ok(Self {
            sm: image.sm,
            lines: Lines::read(&image.lines),
            functions: image.functions,
            by_name,
            code: image.code,
        })
    }

    /// Compute capability as one number (90 for 9.0), where the ABI is known.
    pub fn sm(&self) -> Option<u32> {
        self.sm
    }

    /// Whether it was built with -lineinfo or -G.
    pub fn has_lines(&self) -> bool {
        !self.lines.is_empty()
    }

    /// Some of its lines are missing because there are too many.
    pub fn is_cut(&self) -> bool {
        self.lines.is_cut()
    }

    /// Function symbols, in the order of the symbol table.
    pub fn functions(&self) -> &[FunctionSymbol] {
        &self.functions
    }

    /// Sections of code.
    pub fn code(&self) -> &[CodeSection] {
        &self.code
    }

    /// Finds a function: by its symbol if the name agrees, else by its name, else by the section of that name.
    pub fn find(&self, function: &FunctionName<'_>) -> Option<Spot<'_>> {
        let agrees = |name: &[u8]| {
            if function.cut {
                name.starts_with(function.name)
            } else {
                name == function.name
            }
        };
        let indexed = self
            .functions
            .binary_search_by_key(&function.index, |f| f.index)
            .ok()
            .map(|at| &self.functions[at])
            .filter(|f| agrees(&f.name));
        if let Some(found) = indexed.or_else(|| self.by_name(function)) {
            let code = self.section(found.section)?;
            return Some(Spot {
                function: Some(found),
                section: found.section,
                start: found.start,
                size: code.size.saturating_sub(found.start),
            });
        }
        let code = self.code.iter().find(|c| {
            c.name.strip_prefix(b".text.".as_slice()) == Some(function.name) && !function.cut
        })?;
        Some(Spot {
            function: None,
            section: code.index,
            start: 0,
            size: code.size,
        })
    }

    /// A cut name counts only if a single name begins so.
    fn by_name(&self, function: &FunctionName<'_>) -> Option<&FunctionSymbol> {
        let name = |at: usize| &*self.functions[self.by_name[at] as usize].name;
        let first = self
            .by_name
            .partition_point(|i| &*self.functions[*i as usize].name < function.name);
        let found = |at: usize| {
            at < self.by_name.len()
                && if function.cut {
                    name(at).starts_with(function.name)
                } else {
                    name(at) == function.name
                }
        };
        let single = !function.cut || !found(first + 1) || name(first) == name(first + 1);
        (found(first) && single).then(|| &self.functions[self.by_name[first] as usize])
    }

    /// Name of a section of code: `.text.` and a kernel.
    pub fn section_name(&self, index: u32) -> Option<&[u8]> {
        self.section(index).map(|c| &*c.name)
    }

    fn section(&self, index: u32) -> Option<&CodeSection> {
        let at = self.code.binary_search_by_key(&index, |c| c.index).ok()?;
        Some(&self.code[at])
    }

    /// The source line of an instruction, `pc_offset` bytes after the beginning of its function.
    pub fn line(&self, spot: &Spot<'_>, pc_offset: u64) -> Result<SourceLine, NoLine> {
        if pc_offset >= spot.size {
            return Err(NoLine::Outside);
        }
        if self.lines.is_empty() {
            return Err(NoLine::NoLineInfo);
        }
        match self.lines.at(spot.section, spot.start + pc_offset) {
            Some((Some(file), line)) if line > 0 => Ok(SourceLine {
                file: Arc::clone(file),
                line,
            }),
            _ => Err(NoLine::NoRow),
        }
    }

    /// [`Cubin::find`] and [`Cubin::line`] in one.
    pub fn resolve(
        &self,
        function: &FunctionName<'_>,
        pc_offset: u64,
    ) -> Result<SourceLine, NoLine> {
        let spot = self.find(function).ok_or(NoLine::NoFunction)?;
        self.line(&spot, pc_offset)
    }

    /// Bytes it takes in memory, about.
    pub fn size(&self) -> usize {
        let names: usize = self.functions.iter().map(|f| f.name.len()).sum();
        let code: usize = self
            .code
            .iter()
            .map(|c| c.name.len() + size_of::<CodeSection>())
            .sum();
        let each = size_of::<FunctionSymbol>() + size_of::<u32>();
        self.lines.size() + names + code + each * self.functions.len()
    }
}
