#pragma once
#include "idf.h"
