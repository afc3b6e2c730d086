/* A driver that is not the simulated one. */
int cuGetExportTable(const void **table, const void *id)
{
	(void)id;
	*table = 0;
	return 500;
}
