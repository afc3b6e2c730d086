/*
 * The demo's kernels as PTX text, our own, for any GPU since sm_52. Placeholders: the module's number
 * (so that modules differ), then length and text of the long kernel's name, twice its duration in ns.
 *
 * long_ns<N> runs for about N nanoseconds on a real GPU (it watches the GPU's clock, within a bounded
 * loop), and exactly N on the simulated driver, which reads the number in the name.
 */
#ifndef DEMO_KERNELS_H
#define DEMO_KERNELS_H

static const char KERNELS[] =
	".version 5.0\n"
	".target sm_52\n"
	".address_size 64\n"
	/* float *out, const float *a, int n */
	".visible .entry _Z5scalePfPKfi(.param .u64 out, .param .u64 a, .param .u32 n)\n"
	"{\n"
	"	.reg .pred %%p<2>; .reg .f32 %%f<3>; .reg .b32 %%r<6>; .reg .b64 %%d<6>;\n"
	"	ld.param.u64 %%d1, [out]; ld.param.u64 %%d2, [a]; ld.param.u32 %%r1, [n];\n"
	"	mov.u32 %%r2, %%ctaid.x; mov.u32 %%r3, %%ntid.x; mov.u32 %%r4, %%tid.x;\n"
	"	mad.lo.s32 %%r5, %%r2, %%r3, %%r4;\n"
	"	setp.ge.s32 %%p1, %%r5, %%r1;\n"
	"	@%%p1 bra DONE;\n"
	"	mul.wide.s32 %%d3, %%r5, 4; add.s64 %%d4, %%d1, %%d3; add.s64 %%d5, %%d2, %%d3;\n"
	"	ld.global.f32 %%f1, [%%d5]; mul.f32 %%f2, %%f1, 0f40000000; st.global.f32 [%%d4], %%f2;\n"
	"DONE:\n"
	"	ret;\n"
	"}\n"
	/* const float *a, const float *b, float *out, int n */
	".visible .entry _Z6vecaddPKfS0_Pfi(.param .u64 a, .param .u64 b, .param .u64 out, .param .u32 n)\n"
	"{\n"
	"	.reg .pred %%p<2>; .reg .f32 %%f<4>; .reg .b32 %%r<6>; .reg .b64 %%d<8>;\n"
	"	ld.param.u64 %%d1, [a]; ld.param.u64 %%d2, [b]; ld.param.u64 %%d3, [out]; ld.param.u32 %%r1, [n];\n"
	"	mov.u32 %%r2, %%ctaid.x; mov.u32 %%r3, %%ntid.x; mov.u32 %%r4, %%tid.x;\n"
	"	mad.lo.s32 %%r5, %%r2, %%r3, %%r4;\n"
	"	setp.ge.s32 %%p1, %%r5, %%r1;\n"
	"	@%%p1 bra DONE;\n"
	"	mul.wide.s32 %%d4, %%r5, 4; add.s64 %%d5, %%d1, %%d4; add.s64 %%d6, %%d2, %%d4; add.s64 %%d7, %%d3, %%d4;\n"
	"	ld.global.f32 %%f1, [%%d5]; ld.global.f32 %%f2, [%%d6]; add.f32 %%f3, %%f1, %%f2; st.global.f32 [%%d7], %%f3;\n"
	"DONE:\n"
	"	ret;\n"
	"}\n"
	/* unsigned *out: a few hundred steps of arithmetic, the module's number among them */
	".visible .entry _ZN4demo3mixEPj(.param .u64 out)\n"
	"{\n"
	"	.reg .pred %%p<2>; .reg .b32 %%r<4>; .reg .b64 %%d<2>;\n"
	"	ld.param.u64 %%d1, [out];\n"
	"	mov.u32 %%r1, %u; mov.u32 %%r2, 0;\n"
	"LOOP:\n"
	"	mad.lo.u32 %%r1, %%r1, 1664525, 1013904223;\n"
	"	add.u32 %%r2, %%r2, 1;\n"
	"	setp.lt.u32 %%p1, %%r2, 256;\n"
	"	@%%p1 bra LOOP;\n"
	"	st.global.u32 [%%d1], %%r1;\n"
	"	ret;\n"
	"}\n"
	/* unsigned *out */
	".visible .entry _Z%zu%sPj(.param .u64 out)\n"
	"{\n"
	"	.reg .pred %%p<3>; .reg .b32 %%r<2>; .reg .b64 %%d<5>;\n"
	"	ld.param.u64 %%d1, [out];\n"
	"	mov.u32 %%r1, 0; mov.u64 %%d2, %%globaltimer;\n"
	"LOOP:\n"
	"	add.u32 %%r1, %%r1, 1;\n"
	"	mov.u64 %%d3, %%globaltimer; sub.u64 %%d4, %%d3, %%d2;\n"
	"	setp.lt.u64 %%p1, %%d4, %llu;\n"
	"	setp.lt.and.u32 %%p2, %%r1, 1000000000, %%p1;\n"
	"	@%%p2 bra LOOP;\n"
	"	st.global.u32 [%%d1], %%r1;\n"
	"	ret;\n"
	"}\n";

#endif
