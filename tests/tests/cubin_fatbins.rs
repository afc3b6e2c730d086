//! Fat binaries of NVIDIA's own compilers: what is in them, which part a GPU runs, and whether a consumer gets that.
//!
//! Entries are compared with cuobjdump's. What is loaded runs on the simulated driver.

mod cubin_common;

use std::fs;
use std::path::Path;

use cubin_common::{Loading, compiled, sorted, watched};
use parcagpu::cubin::fatbin::{self, Entry};
use parcagpu::cubin::image::{self, Kind};
use parcagpu_abi::status::Counter;

/// Code for `-gencode`: as many cubins as the test wants, and PTX of the newest.
fn targets(list: &[&str]) -> String {
    let each = list.iter().map(|sm| match sm.strip_prefix("ptx_") {
        Some(ptx) => format!("-gencode arch=compute_{ptx},code=compute_{ptx}"),
        None => format!("-gencode arch=compute_{sm},code=sm_{sm}"),
    });
    each.collect::<Vec<_>>().join(" ")
}

fn entries(fatbin: &Path) -> (Vec<u8>, Vec<Entry>) {
    let bytes = fs::read(fatbin).unwrap();
    assert_eq!(image::kind(&bytes[..]).unwrap(), Kind::Fatbin);
    assert_eq!(fatbin::len(&bytes[..]).unwrap(), bytes.len() as u64);
    let entries = fatbin::entries(&bytes[..]).unwrap();
    (bytes, entries)
}

/// Entries are those that cuobjdump finds; what is packed is known to be.
#[test]
fn entries_are_those_that_cuobjdump_finds() {
    let Some((_lab, bench)) = compiled("entries_are_those_that_cuobjdump_finds") else {
        return;
    };
    let code = targets(&["75", "80", "90", "90a", "100f", "103", "120", "ptx_120"]);
    let kinds = [
        // By itself nvcc packs PTX and code with debug information, by Zstandard; for speed by LZ4.
        ("default", "", false),
        ("unpacked", "-no-compress", false),
        ("debug", "-G", true),
        ("speed", "-compress-mode=speed -Xfatbin -compress-all", true),
        ("size", "-compress-mode=size", true),
        ("linked", "-dc", false),
    ];
    for (kind, options, packed) in kinds {
        let file = bench.nvcc(
            &format!("{kind}.fatbin"),
            &format!("-fatbin {code} {options}"),
        );
        let (bytes, entries) = entries(&file);
        let sms: Vec<u32> = entries.iter().map(|entry| entry.sm).collect();
        assert_eq!(sms, [75, 80, 90, 90, 100, 103, 120], "{kind}");
        let own: Vec<bool> = entries.iter().map(|e| e.one_architecture).collect();
        assert_eq!(own, [false, false, false, true, false, false, false]);
        let parts = bench.taken_apart(&file);
        assert_eq!(parts.len(), entries.len());
        for (entry, part) in entries.iter().zip(&parts) {
            let Some(cubin) = entry.cubin else {
                assert!(packed || kind == "linked", "{kind}: {entry:?}");
                continue;
            };
            let at = cubin.offset as usize;
            assert!(!packed && kind != "linked", "{kind}: {entry:?}");
            assert_eq!(bytes[at..at + cubin.len as usize], part[..], "{kind}");
        }
    }
}

/// Which code a GPU runs, by NVIDIA's rules of binary compatibility.
#[test]
fn the_gpu_gets_its_code() {
    let Some((_lab, bench)) = compiled("the_gpu_gets_its_code") else {
        return;
    };
    let code = targets(&["75", "80", "86", "87", "90a", "100f", "103a", "120"]);
    let (_, all) = entries(&bench.nvcc("all.fatbin", &format!("-fatbin {code}")));
    let expected = [
        (70, None),
        (75, Some(0)),
        (80, Some(1)),
        (86, Some(2)),
        (87, Some(3)),
        (89, Some(2)),
        (90, Some(4)),
        (100, Some(5)),
        (103, Some(6)),
        (110, None),
        (120, Some(7)),
        (121, Some(7)),
    ];
    for (gpu, index) in expected {
        let index: Option<usize> = index;
        let wanted = index.map(|i| all[i].cubin.expect("nothing is packed"));
        assert_eq!(fatbin::chosen(&all, gpu), wanted, "sm_{gpu}");
    }
    let code = targets(&["90", "90a"]);
    let (_, both) = entries(&bench.nvcc("both.fatbin", &format!("-fatbin {code}")));
    let own = both.iter().find(|entry| entry.one_architecture);
    let own = own.expect("code for sm_90a").cubin;
    assert!(own.is_some() && fatbin::chosen(&both, 90) == own);
}

/// Of fat binaries the entry of the GPU is told; what only the driver can unpack, compile or link is not, and no
/// other entry in its place.
#[test]
fn of_fat_binaries_the_gpus_part_is_told() {
    let Some((lab, bench)) = watched("of_fat_binaries_the_gpus_part_is_told") else {
        return;
    };
    let code = targets(&["80", "90", "120", "ptx_120"]);
    let plain = bench.nvcc("plain.fatbin", &format!("-fatbin {code}"));
    let lines = bench.nvcc("lines.fatbin", &format!("-fatbin -lineinfo {code}"));
    let only = bench.nvcc("only.fatbin", "-fatbin -Xptxas -O1 -arch sm_90");
    let zstd = bench.nvcc("zstd.fatbin", &format!("-fatbin -G {code}"));
    let lz4 = format!("-fatbin -compress-mode=speed -Xfatbin -compress-all {code}");
    let lz4 = bench.nvcc("lz4.fatbin", &lz4);
    let ptx = bench.nvcc("text.ptx", "-ptx -arch compute_80");
    let part = bench.nvcc("part.cubin", "-dc -cubin -arch sm_90");
    let [plain_, lines_, only_] = [&plain, &lines, &only].map(|p| p.to_str().unwrap());
    let mut words = vec![
        "fatbin",
        plain_,
        "wrapper",
        lines_,
        "librarywrapper",
        only_,
        "library",
        plain_,
    ];
    for file in [&zstd, &lz4, &ptx, &part] {
        words.extend(["data", file.to_str().unwrap()]);
    }
    words.push("gate");
    let parts = [&plain, &lines].map(|file| bench.taken_apart(file));
    let only = bench.taken_apart(&only);
    for (gpu, index) in [(90, 1), (120, 2), (89, 0)] {
        let mut wanted: Vec<_> = parts.iter().map(|parts| parts[index].clone()).collect();
        let mut words = words.clone();
        if gpu == 90 {
            wanted.extend(only.iter().cloned());
        } else {
            // No GPU but Hopper's takes it.
            words.drain(4..6);
        }
        let mut loading = Loading::start(&lab, true, gpu, &words);
        loading.go_on();
        let told = loading.wait("cubin_loaded", wanted.len());
        assert_eq!(sorted(loading.read(&told)), sorted(wanted), "sm_{gpu}");
        let all = loading.end();
        assert_eq!(all.of("cubin_loaded").count(), told.len(), "sm_{gpu}");
    }
}

/// From CUPTI a consumer gets what the driver runs, whatever it was made from: packed entries in the way they were
/// before, PTX as what it became.
#[test]
fn what_the_driver_makes_is_told_through_cupti() {
    let Some((lab, bench)) = watched("what_the_driver_makes_is_told_through_cupti") else {
        return;
    };
    let code = targets(&["80", "90", "120", "ptx_120"]);
    let lz4 = format!("-fatbin -lineinfo -compress-mode=speed -Xfatbin -compress-all {code}");
    let files = [
        bench.nvcc("plain.fatbin", &format!("-fatbin {code}")),
        bench.nvcc("zstd.fatbin", &format!("-fatbin -G {code}")),
        bench.nvcc("lz4.fatbin", &lz4),
    ];
    let cubin = bench.nvcc("13.cubin", "-cubin -lineinfo -Xptxas -O1 -arch sm_90");
    let older = bench.ptxas("12.cubin", 90, "-lineinfo", "-lineinfo");
    let ptx = bench.nvcc("text.ptx", "-ptx -arch compute_80");
    let [fat, zstd, lz4] = [&files[0], &files[1], &files[2]].map(|p| p.to_str().unwrap());
    let words = [
        "wrapper",
        fat,
        "fatbin",
        zstd,
        "library",
        lz4,
        "use",
        "module",
        cubin.to_str().unwrap(),
        "data",
        older.to_str().unwrap(),
        "data",
        ptx.to_str().unwrap(),
        "gate",
        "drop",
        "drop",
        "drop",
        "gate",
    ];
    let mut wanted: Vec<_> = files
        .iter()
        .map(|f| bench.taken_apart(f)[1].clone())
        .collect();
    wanted.extend([&cubin, &older].map(|file| fs::read(file).unwrap()));

    let mut loading = Loading::start(&lab, false, 90, &words);
    loading.go_on();
    let told = loading.wait("cubin_loaded", wanted.len() + 1);
    let mut read = loading.read(&told);
    let made = read.pop().expect("the last one came from PTX");
    assert!(!wanted.contains(&made));
    assert_eq!(image::cubin_len(&made[..]).unwrap(), made.len() as u64);
    assert_eq!(sorted(read), sorted(wanted));
    loading.go_on();
    loading.wait("cubin_unloaded", 3);
    assert_eq!(loading.counter(Counter::CubinsKept), 3);
    loading.end();
}
