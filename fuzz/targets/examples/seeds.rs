//! Writes the seeds in `fuzz/seeds`: one well-formed input or a few for each target, made here.
//!
//!     cargo run -p parcagpu-fuzz-targets --example seeds

use std::fs;
use std::path::Path;

use parcagpu_cli::recording::block::{Blocks, Next};
use parcagpu_cli::recording::format::Note;
use parcagpu_cli::recording::writer::{Beginning, Writer};

/// Bytes, written one thing after another.
#[derive(Clone, Default)]
struct Out(Vec<u8>);

impl Out {
    fn u16(mut self, n: u16) -> Self {
        self.0.extend(n.to_le_bytes());
        self
    }
    fn u32(mut self, n: u32) -> Self {
        self.0.extend(n.to_le_bytes());
        self
    }
    fn u64(mut self, n: u64) -> Self {
        self.0.extend(n.to_le_bytes());
        self
    }
    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
    /// Zeros up to `len` bytes.
    fn to(mut self, len: usize) -> Self {
        self.0.resize(len.max(self.0.len()), 0);
        self
    }
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
}

/// An ELF file's header; `tables` are offset and count of program and section headers.
fn header(kind: u16, machine: u16, segments: (u64, u16), sections: (u64, u16)) -> Out {
    Out::default()
        .bytes(b"\x7fELF\x02\x01\x01\x33\x07")
        .to(16)
        .u16(kind)
        .u16(machine)
        .u32(1)
        .u64(0)
        .u64(segments.0)
        .u64(sections.0)
        .u32(0x5a_055a)
        .u16(64)
        .u16(56)
        .u16(segments.1)
        .u16(64)
        .u16(sections.1)
        .u16(1)
}

fn section(out: Out, name: u32, kind: u32, offset: u64, size: u64, link: u32) -> Out {
    out.u32(name)
        .u32(kind)
        .u64(0)
        .u64(0)
        .u64(offset)
        .u64(size)
        .u32(link)
        .u32(0)
        .u64(1)
        .u64(24)
}

fn segment(out: Out, flags: u32, offset: u64, size: u64) -> Out {
    let out = out.u32(1).u32(flags).u64(offset).u64(offset).u64(offset);
    out.u64(size).u64(size).u64(16)
}

/// A cubin with a section of code, one without bytes, and a segment.
fn cubin() -> Vec<u8> {
    let code = 64 + 56;
    let out = header(2, 190, (64, 1), (code + 32, 3));
    let out = segment(out, 5, code, 32).bytes(&[0x5a; 32]);
    let out = section(out, 0, 0, 0, 0, 0);
    let out = section(out, 1, 1, code, 32, 0);
    section(out, 7, 8, code, 1 << 20, 0).0
}

/// A line table of DWARF 2: `src/k.cu`, line 5 at offset 0 and line 6 at 16, up to 32. The place of the address that
/// a relocation fills.
fn line_table() -> (Out, u64) {
    let tables = Out(vec![1, 1, 0xfb, 14, 10]).bytes(&[0, 1, 1, 1, 1, 0, 0, 0, 1]);
    let tables = tables.bytes(b"src\0\0k.cu\0").bytes(&[1, 0, 0, 0]);
    let program = Out(vec![0, 9, 2]).u64(0);
    let program = program.bytes(&[3, 4, 1, 2, 16, 3, 1, 1, 2, 16, 0, 1, 1]);
    let length = 2 + 4 + tables.len() + program.len();
    let head = Out::default().u32(length as u32).u16(2);
    let head = head.u32(tables.len() as u32);
    let address = head.len() + tables.len() + 3;
    (head.bytes(&tables.0).bytes(&program.0), address)
}

/// A section and its bytes.
struct Part {
    name: u32,
    kind: u32,
    flags: u64,
    bytes: Vec<u8>,
    /// The section that it is linked with, and the one that it is about.
    link: u32,
    about: u32,
}

/// A cubin with a kernel `k` and its lines.
fn lined() -> Vec<u8> {
    let names = b"\0.shstrtab\0.text.k\0.symtab\0.strtab\0.debug_line\0.rela.debug_line\0";
    let name = |wanted: &str| {
        let wanted = [&b"\0"[..], wanted.as_bytes(), b"\0"].concat();
        let at = names.windows(wanted.len()).position(|w| w == wanted);
        at.expect("one of them") as u32 + 1
    };
    let (line, address) = line_table();
    let symbols = Out::default().to(24).u32(1).u16(0x12).u16(2).u64(0).u64(32);
    let relocations = Out::default().u64(address).u64(1 << 32 | 2).u64(0);
    let part = |named, kind, flags, bytes: &[u8], link, about| Part {
        name: name(named),
        kind,
        flags,
        bytes: bytes.to_vec(),
        link,
        about,
    };
    let parts = [
        part(".shstrtab", 3, 0, names, 0, 0),
        part(".text.k", 1, 6, &[0x5a; 32], 0, 0),
        part(".symtab", 2, 0, &symbols.0, 4, 1),
        part(".strtab", 3, 0, b"\0k\0", 0, 0),
        part(".debug_line", 1, 0, &line.0, 0, 0),
        part(".rela.debug_line", 4, 0, &relocations.0, 3, 5),
    ];
    let bytes: Vec<u8> = parts.iter().flat_map(|p| &p.bytes).copied().collect();
    let out = header(2, 190, (0, 0), (64 + bytes.len() as u64, 7));
    let mut out = section(out.bytes(&bytes), 0, 0, 0, 0, 0);
    let mut at = 64;
    for part in parts {
        let size = part.bytes.len() as u64;
        let head = out.u32(part.name).u32(part.kind).u64(part.flags).u64(0);
        let head = head.u64(at).u64(size).u32(part.link).u32(part.about);
        out = head.u64(1).u64(24);
        at += size;
    }
    out.0
}

fn entry(kind: u16, sm: u32, flags: u64, payload: &[u8]) -> Out {
    let padded = payload.len().next_multiple_of(8);
    Out::default()
        .u16(kind)
        .u16(0x101)
        .u32(64)
        .u64(padded as u64)
        .u64(0)
        .u32(0x1_0008)
        .u32(sm)
        .u64(0)
        .u64(flags)
        .to(64)
        .bytes(payload)
        .to(64 + padded)
}

fn fatbin(entries: &[Out]) -> Vec<u8> {
    let body: u64 = entries.iter().map(Out::len).sum();
    let head = Out::default().u32(0xba55_ed50).u16(1).u16(16).u64(body);
    entries.iter().fold(head, |out, e| out.bytes(&e.0)).0
}

fn note(provider: &str, name: &str) -> Out {
    let texts = [provider, name, "-8@%rdi 8@%rsi"].map(|t| format!("{t}\0"));
    let texts = texts.concat();
    let desc = Out::default().u64(0x1000).u64(0x500).u64(0x2000);
    let desc = desc.bytes(texts.as_bytes());
    let head = Out::default().u32(8).u32(desc.len() as u32).u32(3);
    let note = head.bytes(b"stapsdt\0").bytes(&desc.0);
    let len = note.0.len().next_multiple_of(4);
    note.to(len)
}

/// A library with probes, a symbol and a segment of code.
fn library() -> Vec<u8> {
    let names = b"\0.note.stapsdt\0.stapsdt.base\0.dynsym\0.dynstr\0";
    let strings = b"\0parcagpu_status\0";
    let notes = note("parcagpu", "error").bytes(&note("other", "x").0);
    let symbols = Out::default().to(24).u32(1).u16(0x11).u16(3);
    let symbols = symbols.u64(0x3000).u64(8);
    let (at_names, mut at) = (64 + 56, 64 + 56 + names.len() as u64);
    let mut place = |len: u64| {
        let here = at;
        at += len;
        here
    };
    let at_notes = place(notes.len());
    let at_symbols = place(symbols.len());
    let at_strings = place(strings.len() as u64);
    let out = header(3, 62, (64, 1), (at, 6));
    let out = segment(out, 5, 0, at);
    let out = out.bytes(names).bytes(&notes.0);
    let out = out.bytes(&symbols.0).bytes(strings);
    let out = section(out, 0, 0, 0, 0, 0);
    let out = section(out, 0, 3, at_names, names.len() as u64, 0);
    let out = section(out, 1, 7, at_notes, notes.len(), 0);
    let out = section(out, 15, 1, 0, 0, 0);
    let out = section(out, 29, 11, at_symbols, symbols.len(), 5);
    section(out, 37, 3, at_strings, strings.len() as u64, 0).0
}

/// What an event has before it, with room for its body.
fn event(probe: u32, body: Out) -> Out {
    let out = Out::default().u32(probe).u32(10).u32(11).u32(0);
    let out = out.u64(1_000_000_000).u64(5).bytes(&body.0);
    Out::default().u16(out.0.len() as u16).bytes(&out.0)
}

/// One of each kind, in the order of the contract's probes.
fn events() -> Vec<Out> {
    let name = b"_Z4gemmPf";
    let named = |out: Out| out.u32(name.len() as u32).u32(0).bytes(name);
    let kernel = |out: Out| out.u64(1_000).u64(2_000).to(8 + 96).bytes(name);
    let reasons = Out::default().u64(0xfeed).u64(16).u64(2).u32(1).u32(7);
    let reasons = reasons.u32(name.len() as u32).u32(1).u32(3).u32(9);
    let nvtx = |kind: u16, time: u64| {
        let out = Out::default().u64(time).u32(11).u32(0).u32(0);
        let out = out.u16(kind).u16(0).u32(0).u32(0).u64(0).u64(77);
        event(9, out.u32(4).u32(0).bytes(b"step"))
    };
    vec![
        event(0, named(Out::default().u32(7).u32(307))),
        event(1, kernel(Out::default().u32(0).u32(0))),
        event(2, kernel(Out::default().u32(10).u32(0))),
        event(3, reasons.to(40 + 8 * 64).bytes(name)),
        event(4, Out::default().u32(2).u32(1).to(8 + 64 * 64)),
        event(5, Out::default().u32(0).u32(20).u32(1_980_000).u32(132)),
        event(6, Out::default().u64(0xfeed).u64(0x7f00).u64(4096)),
        event(7, Out::default().u64(0xfeed)),
        event(
            8,
            Out::default()
                .u32(39)
                .u32(3)
                .u32(5)
                .u32(0)
                .bytes(b"why")
                .to(16 + 256)
                .bytes(b"cupti"),
        ),
        nvtx(1, 1_000)
            .bytes(&nvtx(3, 2_000).0)
            .bytes(&nvtx(5, 3_000).0)
            .bytes(&nvtx(2, 4_000).0)
            .bytes(&nvtx(4, 1_500_000_000).0),
        event(10, Out::default().u64(3).u32(5).u32(6).bytes(b"domain")),
    ]
}

/// A dynamic section, and tables that have `cuInit` by both kinds of hash.
fn tables(gnu: bool) -> Vec<u8> {
    // Addresses are offsets in the file; the target puts these bytes at 256.
    const START: u64 = 256;
    let hash = "cuInit".bytes().fold(5381u32, |h, c| {
        h.wrapping_mul(33).wrapping_add(u32::from(c))
    });
    let (dynamic, strings, symbols) = (5 * 16, 16u64, 48u64);
    let at = START + dynamic;
    let tag = if gnu { 0x6fff_fef5 } else { 4 };
    let out = Out::default().u64(5).u64(at).u64(6).u64(at + strings);
    let out = out.u64(tag).u64(at + strings + symbols);
    let out = out.u64(12).u64(START).u64(0).u64(0);
    let out = out.bytes(b"\0cuInit\0").to((dynamic + strings) as usize);
    let out = out.to((dynamic + strings) as usize + 24);
    let out = out.u32(1).u16(0x12).u16(7).u64(0x400).u64(16);
    match gnu {
        true => {
            let out = out.u32(1).u32(1).u32(1).u32(6).u64(u64::MAX);
            out.u32(1).u32(hash | 1).0
        }
        false => out.u32(1).u32(2).u32(1).u32(0).u32(0).0,
    }
}

fn attributes(kind: u8, message: i32, text: &[u8]) -> Vec<u8> {
    let out = Out(vec![kind, 48]).u16(3).u16(48).u32(1).u32(1);
    let out = out.u32(0xff00_ff00).u32(5).u32(0).u64(99);
    out.u32(message as u32).u32(0).u64(0).bytes(text).0
}

/// A file with something of everything, as `parcagpu record` writes it.
fn recording() -> Vec<u8> {
    let about = Beginning {
        version: "1".to_owned(),
        command: "app".to_owned(),
        kernel_release: "6.1".to_owned(),
        begin_ns: 50,
    };
    let mut w = Writer::new(Vec::new(), &about).expect("memory");
    w.clock(50, 1_000, 40);
    let p = w.process(77, 5);
    w.note(p, Note::Comm, 0, 0, "app");
    w.note(p, Note::SmCount, 1, 132, "");
    w.note(p, Note::Domain, 2, 0, "loader");
    let (kernel, main) = (w.name(b"_Z1kv", false), w.name(b"main", false));
    let frames = [w.frame([main, 0, 0, 12]), w.frame([kernel, 0, 0, 0])];
    w.stack(3, &frames);
    for id in [5, 6] {
        w.launch([100 + id, p, 78, id, 614, kernel, 3]);
        let mut row = [1; 19];
        row[..9].copy_from_slice(&[1_200 + id, 10, p, 1, 2, 7, id, 0, 0]);
        row[18] = kernel;
        w.kernel(row);
    }
    w.pc_sample([300, p, 0xabc, 16, kernel, 5], &[(1, 40), (0, 2)]);
    for (time, kind) in [(110, 1), (120, 2)] {
        w.nvtx([time, p, 78, kind, 2, 0, 0xff00, main]);
    }
    w.error([130, p, 9, main, kernel]);
    w.cubin(0xabc, 0, 4, b"\x7fELF");
    w.finish(1_050).expect("memory")
}

/// Its blocks as the target takes them.
fn blocks(file: &[u8]) -> Vec<u8> {
    let mut blocks = Blocks::new(&file[16..], 16);
    let mut out = Out::default();
    while let Next::Block(kind) = blocks.read_next().expect("memory") {
        let payload = blocks.payload();
        out = out.bytes(&[kind]).u16(payload.len() as u16).bytes(payload);
    }
    out.0
}

fn main() {
    let code = cubin();
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../seeds");
        let folder = seeds.join(target);
        fs::create_dir_all(&folder).expect("the repository can be written");
        fs::write(folder.join(name), bytes).expect("the repository can be written");
    };
    write("cubin", "one", &code);
    write("lines", "one", &lined());
    let printed = b"\t.section\t.text.k,\"ax\",@progbits\nk:\n        /*0000*/   @!P0 LDG.E R4, desc[UR4][R2.64] ;\n.L_x_0:\n        /*0010*/   BRA `(.L_x_0);\n";
    write("sass", "one", printed);
    write("cubin", "bare", &header(2, 190, (0, 0), (0, 0)).0);
    let plain = entry(2, 90, 0x11, &code);
    write("fatbin", "one", &fatbin(std::slice::from_ref(&plain)));
    let all = [
        entry(2, 80, 0x11, &code),
        entry(2, 90, 0x10_0011, &code),
        entry(2, 100, 0x20_8011, &[0x28, 0xb5, 0x2f, 0xfd]),
        entry(1, 120, 0x11, b".version 9.0\n"),
        plain,
    ];
    write("fatbin", "several", &fatbin(&all));
    write("nvtx", "chars", b"\x00\x00a\xc3\xa9\xff");
    write(
        "nvtx",
        "wide",
        &Out(vec![1, 0]).u32(0x61).u32(0x1_f600).u32(0xd800).0,
    );
    write("nvtx", "registered", &Out(vec![2, 0]).u64(0).0);
    write("nvtx", "attributes", &attributes(7, 1, b"step"));
    write(
        "nvtx",
        "attributes-wide",
        &attributes(7, 2, b"s\0\0\0t\0\0\0"),
    );
    let sync = Out(vec![3, 16]).u16(3).u16(16).u32(1).u64(0);
    write("nvtx", "sync", &sync.bytes(b"lock").0);
    let resource = Out(vec![4, 32]).u16(3).u16(32).u32(0x1_0003).u64(7);
    write(
        "nvtx",
        "resource",
        &resource.u32(1).u32(0).u64(0).bytes(b"main").0,
    );
    let values: [&[u8]; 4] = [
        b"PARCAGPU_RATE_LIMIT=12.5\0PARCAGPU_YIELD=never\0PARCAGPU_DEBUG=2",
        b"PARCAGPU_SAMPLING_FACTOR=31\0PARCAGPU_NOPE=1\0\x01=1e309\0\x03=-1",
        b"\x08=gum\0\x06=serialized\0\x07=runtime\0\x0b=99999999999\0\x0d=yes",
        b"HOME=/root\0PARCAGPU_RATE_LIMIT=nan\0PARCAGPU_RATE_LIMIT=",
    ];
    for (i, value) in values.iter().enumerate() {
        write("environment", &i.to_string(), value);
    }
    write("elf", "library", &library());
    write("elf", "notes", &note("parcagpu", "error").0);
    let lines = "7f10a0000000-7f10a0021000 r-xp 00001000 fe:01 1234    /opt/a b/lib x.so (deleted)
7ffd0000-7ffe0000 rw-p 00000000 00:00 0                          [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n";
    write("maps", "lines", lines.as_bytes());
    write("status", "zeros", &[1; 64]);
    write(
        "status",
        "counters",
        &Out(vec![1]).to(200).bytes(&[0xff; 400]).0,
    );
    let kinds = events();
    for (i, one) in kinds.iter().enumerate() {
        write("events", parcagpu_abi::probe::ALL[i].name, &one.0);
    }
    let most = kinds.iter().filter(|e| e.0.len() < 400);
    let stream = most.fold(Out::default(), |out, e| out.bytes(&e.0));
    write("events", "stream", &stream.0);
    let names = [
        "_Z9vectorAddPKfS0_Pfi",
        "_ZN4core3fmt5write17h0123456789abcdefE",
        "_RNvCs1234_7mycrate3foo",
        "_ZN2at6native6reduceILi512ELi1EEEvT_",
        "_ZZN3fooclEvENKUlT_E_clIiEEDaS_",
        "plain_kernel",
    ];
    for (i, name) in names.iter().enumerate() {
        write("names", &i.to_string(), name.as_bytes());
    }
    write("symbols", "gnu", &tables(true));
    write("symbols", "sysv", &tables(false));
    let file = recording();
    write("recording", "file", &file);
    for target in ["recording", "report"] {
        write(target, "blocks", &blocks(&file));
    }
    let map = "7f0000000000 20 jitted\n0x1000 10 py::step:/srv/train.py\n";
    write("jit", "map", map.as_bytes());
}
