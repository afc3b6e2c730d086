//! Modules, libraries and the kernels in them.
//!
//! A library is loaded into a context when something of it is first used there, as the driver does
//! by default (lazy loading); only then does `MODULE_LOADED` come.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::context::{self, Context, give};
use crate::driver_api;
use crate::error::{Error, FILE_NOT_FOUND, INVALID_VALUE, NOT_FOUND, Outcome};
use crate::handle::{Kind, Object};
use crate::image::{self, Image};
use crate::link::ModuleImage;
use crate::{export, timeline};

/// A kernel, as `CUfunction` (of a module) or `CUkernel` (of a library); launches take either.
pub struct Kernel {
    /// Mangled name.
    pub name: CString,
    /// Number of parameters, 0 when the image does not tell.
    pub parameters: usize,
    /// Duration for each 1024 blocks, ns.
    pub duration: u64,
    /// The machine code it is in.
    pub image: &'static Image,
    /// Bytes of its own code.
    pub code_size: u64,
    /// Index of its symbol there.
    pub symbol: u32,
    /// The library that has to be loaded before it can run.
    library: Option<&'static Object<Library>>,
    /// The module it is in, none for a library's kernel.
    module: Option<&'static Object<Module>>,
}

impl Kind for Kernel {
    const MAGIC: u32 = 0x4b65_7204;
}

/// `CUfunction` and `CUkernel`.
pub type KernelHandle = *mut Object<Kernel>;

/// A module in a context.
pub struct Module {
    id: u32,
    context: u32,
    kernels: Mutex<Vec<&'static Object<Kernel>>>,
    image: &'static Image,
    owner: &'static Object<Context>,
}

impl Kind for Module {
    const MAGIC: u32 = 0x4d6f_6405;
}

/// `CUmodule`.
pub type ModuleHandle = *mut Object<Module>;

/// A library: code not bound to a context.
pub struct Library {
    image: &'static Image,
    kernels: Mutex<Vec<&'static Object<Kernel>>>,
    modules: Mutex<Vec<(u32, &'static Object<Module>)>>,
    /// Context id of the last use: the common case takes no lock.
    last: AtomicU32,
}

impl Kind for Library {
    const MAGIC: u32 = 0x4c69_6206;
}

/// `CUlibrary`.
pub type LibraryHandle = *mut Object<Library>;

static MODULES: Mutex<Vec<&'static Object<Module>>> = Mutex::new(Vec::new());
static NEXT_MODULE: AtomicU32 = AtomicU32::new(1);

/// The name of a kernel for CUPTI's callbacks, null when the handle is none.
pub fn symbol(handle: KernelHandle) -> *const c_char {
    // SAFETY: launches pass handles of ours.
    unsafe { Object::get(handle) }.map_or(std::ptr::null(), |kernel| kernel.name.as_ptr())
}

/// The kernel behind a handle, loaded into the context.
pub fn runnable(
    handle: KernelHandle,
    context: &'static Object<Context>,
) -> Result<&'static Object<Kernel>, Error> {
    // SAFETY: launches pass handles of ours.
    let kernel = unsafe { Object::get(handle)? };
    if let Some(library) = kernel.library
        && library.last.load(Ordering::Acquire) != context.id
    {
        library_module(library, context);
    }
    Ok(kernel)
}

fn kernels_of(
    image: &'static Image,
    library: Option<&'static Object<Library>>,
    module: Option<&'static Object<Module>>,
) -> Vec<&'static Object<Kernel>> {
    image
        .kernels
        .iter()
        .map(|info| {
            Object::publish(Kernel {
                name: CString::new(info.name.clone()).unwrap_or_default(),
                parameters: info.parameters,
                duration: timeline::kernel_duration(&info.name),
                image,
                code_size: info.code_size,
                symbol: info.symbol,
                library,
                module,
            })
        })
        .collect()
}

fn find(
    kernels: &Mutex<Vec<&'static Object<Kernel>>>,
    name: *const c_char,
) -> Result<KernelHandle, Error> {
    if name.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's string.
    let name = unsafe { CStr::from_ptr(name) };
    let kernels = kernels.lock().expect("nobody panics holding it");
    kernels
        .iter()
        .find(|kernel| kernel.name.as_c_str() == name)
        .map(|kernel| kernel.handle())
        .ok_or(NOT_FOUND)
}

fn load_image(image: &'static Image, owner: &'static Object<Context>) -> &'static Object<Module> {
    let module = Object::publish(Module {
        id: NEXT_MODULE.fetch_add(1, Ordering::Relaxed),
        context: owner.id,
        kernels: Mutex::new(Vec::new()),
        image,
        owner,
    });
    *module.kernels.lock().expect("nobody panics holding it") =
        kernels_of(image, None, Some(module));
    MODULES
        .lock()
        .expect("nobody panics holding it")
        .push(module);
    notify(export::MODULE_LOADED, module);
    module
}

fn notify(cbid: u32, module: &'static Object<Module>) {
    let described = describe(module);
    if cbid == export::MODULE_LOADED {
        export::module_loaded(&described);
    }
    export::resource(
        cbid,
        described.context,
        std::ptr::null_mut(),
        &raw const described,
    );
}

fn describe(module: &'static Object<Module>) -> ModuleImage {
    ModuleImage {
        id: module.id,
        module: module.handle().cast(),
        context: module.owner.handle().cast(),
        cubin: module.image.cubin.as_ptr().cast(),
        cubin_size: module.image.cubin.len(),
    }
}

fn unload(module: &'static Object<Module>) -> Outcome {
    // Announced first: the code is still there while CUPTI tells of it.
    notify(export::MODULE_UNLOAD_STARTING, module);
    export::module_unloaded(&describe(module));
    if !module.retire() {
        return Err(crate::error::INVALID_HANDLE);
    }
    module
        .kernels
        .lock()
        .expect("nobody panics holding it")
        .iter()
        .for_each(|kernel| {
            kernel.retire();
        });
    MODULES
        .lock()
        .expect("nobody panics holding it")
        .retain(|other| !std::ptr::eq(*other, module));
    Ok(())
}

/// Unloads what a context still has when it goes.
pub fn unload_all(context: u32) {
    let modules = MODULES.lock().expect("nobody panics holding it").clone();
    for module in modules
        .into_iter()
        .filter(|module| module.context == context)
    {
        let _ = unload(module);
    }
}

/// Tells CUPTI whose code a launch is about to run. Measured: at every launch of a module's kernel,
/// whether the module was loaded before the subscriber came or after.
pub fn profiled(kernel: &Kernel, context: &'static Object<Context>) {
    if export::wanted(export::MODULE_PROFILED) {
        let of_library = || {
            kernel
                .library
                .map(|library| library_module(library, context))
        };
        if let Some(module) = kernel.module.or_else(of_library) {
            notify(export::MODULE_PROFILED, module);
        }
    }
}

fn load(out: *mut ModuleHandle, image: *const c_void) -> Outcome {
    let context = context::required()?;
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's image and out-pointer.
    unsafe {
        let image = Box::leak(Box::new(image::read(image)?));
        give(out, load_image(image, context).handle())
    }
}

/// The file's bytes with a NUL behind them.
fn file(path: *const c_char) -> Result<Vec<u8>, Error> {
    if path.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's string.
    let path = unsafe { CStr::from_ptr(path) };
    let mut bytes = path
        .to_str()
        .ok()
        .and_then(|path| std::fs::read(path).ok())
        .ok_or(FILE_NOT_FOUND)?;
    // Room for the fixed headers, so that a short file cannot be read past its end.
    bytes.resize(bytes.len() + 64, 0);
    Ok(bytes)
}

fn load_file(out: *mut ModuleHandle, path: *const c_char) -> Outcome {
    context::required()?;
    load(out, file(path)?.as_ptr().cast())
}

fn library(out: *mut LibraryHandle, code: *const c_void) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's image and out-pointer.
    unsafe {
        let image: &'static Image = Box::leak(Box::new(image::read(code)?));
        let library = Object::publish(Library {
            image,
            kernels: Mutex::new(Vec::new()),
            modules: Mutex::new(Vec::new()),
            last: AtomicU32::new(0),
        });
        *library.kernels.lock().expect("nobody panics holding it") =
            kernels_of(image, Some(library), None);
        give(out, library.handle())
    }
}

fn library_module(
    library: &'static Object<Library>,
    context: &'static Object<Context>,
) -> &'static Object<Module> {
    let known = |modules: &Vec<(u32, &'static Object<Module>)>| {
        modules
            .iter()
            .find(|(id, module)| *id == context.id && module.alive())
            .map(|entry| entry.1)
    };
    let existing = known(&library.modules.lock().expect("nobody panics holding it"));
    let module = existing.unwrap_or_else(|| {
        // Loaded without the lock held: CUPTI's callback may come back for the same library.
        let module = load_image(library.image, context);
        library
            .modules
            .lock()
            .expect("nobody panics holding it")
            .push((context.id, module));
        module
    });
    library.last.store(context.id, Ordering::Release);
    module
}

fn library_unload(handle: LibraryHandle) -> Outcome {
    // SAFETY: a handle of the driver's, by contract of the call.
    let library = unsafe { Object::get(handle)? };
    let modules = std::mem::take(&mut *library.modules.lock().expect("nobody panics holding it"));
    for (_, module) in modules {
        // A destroyed context has unloaded its module already.
        let _ = if module.alive() {
            unload(module)
        } else {
            Ok(())
        };
    }
    library
        .kernels
        .lock()
        .expect("nobody panics holding it")
        .iter()
        .for_each(|kernel| {
            kernel.retire();
        });
    library.retire();
    Ok(())
}

fn function_of(out: *mut KernelHandle, handle: KernelHandle) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a handle of the driver's and the caller's out-pointer.
    unsafe {
        let kernel = Object::get(handle)?;
        let library = kernel.library.ok_or(crate::error::INVALID_HANDLE)?;
        let module = library_module(library, context::required()?);
        give(out, find(&module.kernels, kernel.name.as_ptr())?)
    }
}

fn name_of(out: *mut *const c_char, handle: KernelHandle) -> Outcome {
    // SAFETY: a handle of the driver's and the caller's out-pointer.
    unsafe {
        let kernel = Object::get(handle)?;
        give(out, kernel.name.as_ptr())
    }
}

driver_api! {
    fn cuModuleLoad[18] (out: *mut ModuleHandle, path: *const c_char) |_call| load_file(out, path);
    fn cuModuleLoadData[19] (out: *mut ModuleHandle, image: *const c_void) |_call| load(out, image);
    fn cuModuleLoadDataEx[20] (out: *mut ModuleHandle, image: *const c_void, count: u32, options: *mut i32,
        values: *mut *mut c_void) |_call| {
        if count > 0 && (options.is_null() || values.is_null()) {
            return Err(INVALID_VALUE);
        }
        load(out, image)
    };
    fn cuModuleLoadFatBinary[21] (out: *mut ModuleHandle, image: *const c_void) |_call| load(out, image);
    fn cuModuleUnload[22] (module: ModuleHandle) |_call| unsafe { Object::get(module) }.and_then(unload);
    fn cuModuleGetFunction[23] (out: *mut KernelHandle, module: ModuleHandle, name: *const c_char) |_call| {
        let module = unsafe { Object::get(module)? };
        let kernel = find(&module.kernels, name)?;
        unsafe { give(out, kernel) }
    };
    fn cuModuleGetFunctionCount[737] (count: *mut u32, module: ModuleHandle) |_call| {
        let module = unsafe { Object::get(module)? };
        unsafe { give(count, module.image.kernels.len() as u32) }
    };
    fn cuLibraryLoadData[678] (out: *mut LibraryHandle, code: *const c_void, jit_options: *mut i32,
        jit_values: *mut *mut c_void, jit_count: u32, options: *mut i32, values: *mut *mut c_void, count: u32)
        |_call| library(out, code);
    fn cuLibraryLoadFromFile[679] (out: *mut LibraryHandle, path: *const c_char, jit_options: *mut i32,
        jit_values: *mut *mut c_void, jit_count: u32, options: *mut i32, values: *mut *mut c_void, count: u32)
        |_call| library(out, file(path)?.as_ptr().cast());
    fn cuLibraryUnload[680] (library: LibraryHandle) |_call| library_unload(library);
    fn cuLibraryGetKernel[681] (out: *mut KernelHandle, library: LibraryHandle, name: *const c_char) |_call| {
        let library = unsafe { Object::get(library)? };
        let kernel = find(&library.kernels, name)?;
        unsafe { give(out, kernel) }
    };
    fn cuLibraryGetModule[682] (out: *mut ModuleHandle, library: LibraryHandle) |_call| {
        let library = unsafe { Object::get(library)? };
        let module = library_module(library, context::required()?);
        unsafe { give(out, module.handle()) }
    };
    fn cuKernelGetFunction[683] (out: *mut KernelHandle, kernel: KernelHandle) |_call| function_of(out, kernel);
    fn cuKernelGetName[719] (out: *mut *const c_char, kernel: KernelHandle) |_call| name_of(out, kernel);
    fn cuFuncGetName[718] (out: *mut *const c_char, function: KernelHandle) |_call| name_of(out, function);
    fn cuFuncGetModule[566] (out: *mut ModuleHandle, function: KernelHandle) |_call| {
        let kernel = unsafe { Object::get(function)? };
        unsafe { give(out, kernel.module.map_or(std::ptr::null_mut(), Object::handle)) }
    };
    fn cuModuleGetLoadingMode[673] (mode: *mut u32) |_call| unsafe { give(mode, 2) };
}
